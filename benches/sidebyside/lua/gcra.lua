-- GCRA: one theoretical arrival time a key: KEYS[1]; capacity, hits a period, period in seconds,
-- hits. Answers {admitted, hits left, milliseconds until the hits would pass}.
local capacity = tonumber(ARGV[1])
local interval = tonumber(ARGV[3]) * 1000000 / tonumber(ARGV[2])
local hits = tonumber(ARGV[4])

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local arrival = math.max(now, tonumber(redis.call('GET', KEYS[1]) or now))
local next = arrival + interval * hits
local ahead = next - now - interval * capacity

if ahead > 0 then
  local left = math.floor((now - arrival) / interval + capacity)
  return {0, left, math.ceil(ahead / 1000)}
end
redis.call('SET', KEYS[1], string.format('%.0f', next), 'PX', math.ceil((next - now) / 1000))
return {1, math.floor((now - next) / interval + capacity + 1e-6), 0}
