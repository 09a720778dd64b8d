-- A log of the last window a key: KEYS[1]; limit, window in seconds, hits.
-- Answers {admitted, hits left, milliseconds until the hits would pass}.
-- Each hit is a member of a sorted set; the counter beside it makes its name unique.
local limit = tonumber(ARGV[1])
local window_us = tonumber(ARGV[2]) * 1000000
local hits = tonumber(ARGV[3])

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - window_us))
local used = redis.call('ZCARD', KEYS[1])

if used + hits > limit then
  -- The hit whose leaving makes room.
  local last = redis.call('ZRANGE', KEYS[1], used + hits - limit - 1, used + hits - limit - 1, 'WITHSCORES')
  local wait = -1
  if last[2] then
    wait = math.ceil((tonumber(last[2]) + window_us - now) / 1000)
  end
  return {0, limit - used, wait}
end
local at = string.format('%.0f', now)
local newest = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
local same = 0
if newest[2] and tonumber(newest[2]) >= now then
  -- Same microsecond (or a clock that went back): go on behind the newest.
  at = string.format('%.0f', tonumber(newest[2]))
  same = redis.call('ZCOUNT', KEYS[1], at, at)
end
for n = 1, hits do
  redis.call('ZADD', KEYS[1], at, at .. ':' .. (same + n))
end
redis.call('PEXPIRE', KEYS[1], math.ceil(window_us / 1000) + 1)
return {1, limit - used - hits, 0}
