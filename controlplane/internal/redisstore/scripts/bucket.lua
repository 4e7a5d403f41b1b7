-- Reads the states of a bucket's two ledgers. clock.lua before it sets now, in microseconds.
--
-- KEYS[1]  its main ledger     KEYS[2]  that of a draft     KEYS[3]  the marker of lost state beside them
-- returns  both ledgers, when the state beside them was last lost, each of them or nothing; and now
return {redis.call('GET', KEYS[1]) or '', redis.call('GET', KEYS[2]) or '', redis.call('GET', KEYS[3]) or '', string.format('%.0f', now)}
