-- An exact rolling log: a list of the instants of admissions, in microseconds, the newest first. A check is admitted when
-- the limit-th newest is not within the window any more.
-- KEYS[1] the principal; ARGV: limit, window in microseconds, window in milliseconds.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local bound = redis.call('LINDEX', KEYS[1], ARGV[1] - 1)
if bound and now - bound < tonumber(ARGV[2]) then
  return 0
end
if redis.call('LPUSH', KEYS[1], string.format('%.0f', now)) > tonumber(ARGV[1]) then
  redis.call('LTRIM', KEYS[1], 0, ARGV[1] - 1)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
