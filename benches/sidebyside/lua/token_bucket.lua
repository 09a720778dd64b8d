-- A token bucket a key: KEYS[1]; capacity, tokens a period, period in seconds, hits.
-- Answers {admitted, tokens left, milliseconds until the hits would pass}.
local capacity = tonumber(ARGV[1])
local period_us = tonumber(ARGV[3]) * 1000000
local rate = tonumber(ARGV[2]) / period_us
local hits = tonumber(ARGV[4])

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local bucket = redis.call('HMGET', KEYS[1], 't', 'at')
local tokens = capacity
if bucket[1] then
  tokens = math.min(capacity, tonumber(bucket[1]) + (now - tonumber(bucket[2])) * rate)
end

-- What doubles lose must not cost a token that is due.
if tokens + 1e-6 < hits then
  return {0, math.floor(tokens), math.ceil((hits - tokens) / rate / 1000)}
end
tokens = tokens - hits
redis.call('HSET', KEYS[1], 't', string.format('%.17g', tokens), 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil((capacity - tokens) / rate / 1000) + 1)
return {1, math.floor(tokens + 1e-6), 0}
