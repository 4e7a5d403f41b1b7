-- Reads the states of a bucket's two ledgers. clock.lua before it sets now, in microseconds.
--
-- KEYS[1]  the main ledger     KEYS[2]  the draft's ledger     KEYS[3]  the marker of lost state of the tag
-- returns  both ledgers, '' for none; the time of the last loss of state, '' without a marker; and now
return {redis.call('GET', KEYS[1]) or '', redis.call('GET', KEYS[2]) or '', redis.call('GET', KEYS[3]) or '', string.format('%.0f', now)}
