// Package storetest is the conformance suite that every store passes.
package storetest

import (
	"cmp"
	"context"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/store"
	"github.com/weir-proxy/weir/shared/quota"
)

// Instance is a store under test, empty at first.
type Instance struct {
	store.Store
	// SetClock sets the time of grants. The suite sets it back only if StepsBack is true.
	SetClock func(quota.Instant)
	// StepsBack is true if SetClock may go back and the store notices.
	StepsBack bool
	// Restart closes the store in an orderly way and opens it again on the same state.
	Restart func(t *testing.T)
	// Lose loses all buckets at a time, as a crash does; nil for a store that cannot lose them.
	Lose func(t *testing.T, now quota.Instant)
	// Doubt is how long permits are in doubt after a loss. Remembers is true if permits from before
	// the loss are known again after that time; otherwise only permits of nodes that have claimed
	// since are known.
	Doubt     quota.Span
	Remembers bool
	// Age makes every node look as if it had been seen that much earlier.
	Age func(t *testing.T, by time.Duration)
	// KeepsNodes is true if nodes survive a restart.
	KeepsNodes bool
	// Fewer makes the suite play one of so many of its random games; 0 plays all of them. It is for
	// a store whose arithmetic another run of the suite tests with all games.
	Fewer int
}

// some returns how many of a number of games or steps the suite plays.
func (s *Instance) some(all int) int { return all / max(s.Fewer, 1) }

// Base is the time at which the suite's clocks start. It is so far in the future that nothing
// expires by the wall clock.
var Base = quota.Instant(time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())

// Secret is the secret of the heads.
func (s *Instance) Secret(ctx context.Context, candidate [16]byte) ([16]byte, error) {
	h, err := s.Heads(ctx, candidate)
	return h.Secret, cmp.Or(err, h.NoSecret)
}

// suite is the list of all tests, in order.
var suite = []struct {
	name string
	run  func(t *testing.T, s *Instance)
}{
	{"versions", testVersions},
	{"versions are dropped when many", testVersionsKept},
	{"one of many writers wins", testVersionRace},
	{"a rollout begins, grows and ends", testRollout},
	{"drafts push out nothing that is in force", testRolloutKeepsWhatIsInForce},
	{"a rollout is restored", testRolloutIsRestored},
	{"one of many steps of a rollout wins", testRolloutRace},
	{"the secret is made once", testSecret},
	{"nodes are forgotten", testNodes},
	{"consumers", testConsumers},
	{"consumers are listed", testConsumerList},
	{"changes of consumers are dropped when many", testConsumerLogIsBounded},
	{"one of many writers of a consumer wins", testConsumerRace},
	{"documents", testDocuments},
	{"one of many writers of a document wins", testCells},
	{"consumers have more than a tier", testSpecialConsumers},
	{"many consumers are put at once", testManyConsumers},
	{"topics are whole", testWholeTopics},
	{"indexes are listed whole", testIndexesAreListedWhole},
	{"penalties", testPenalties},
	{"callers are pardoned", testPardons},
	{"penalties are forgotten", testForgottenPenalties},
	{"penalties follow the rule", testPenaltiesFollowTheRule},
	{"changes are kept with who made them", testAudit},
	{"the audit is bounded", testAuditIsBounded},
	{"changes at once are all kept, in one order", testAuditRace},
	{"refusals are kept", testDecisions},
	{"replicas share their history", testSeries},
	{"grants follow the ledger", testDifferential},
	{"a changed rate follows the ledger", testRateChange},
	{"one bucket many times in a batch", testBatch},
	{"a bucket is never granted more than it holds", testConcurrency},
	{"all algorithms and groups follow the ledgers", testLimitsAndGroups},
	{"golden vectors of windows and queues", testGoldenWindows},
	{"a group is granted all or none", testGroups},
	{"two ledgers of a bucket follow their arithmetic", testTwins},
	{"buckets are looked at and changed", testAdjust},
	{"both ledgers of a bucket are looked at and changed", testAdjustTwins},
	{"changes of buckets follow the ledgers", testAdjustFollowsTheLedgers},
	{"a bucket is changed while it is used", testAdjustRace},
	{"settlements follow the ledgers", testSettlements},
	{"a reservation is settled once", testSettledOnce},
	{"lost reservations give nothing back", testLostReservations},
	{"settlements travel together", testSettlementsTravelTogether},
	{"drafts are settled", testDraftsAreSettled},
	{"returns follow the ledgers", testReturns},
	{"a restart refills nobody", testRestart},
	{"lost buckets start half full", testLostBuckets},
	{"both ledgers of a lost bucket start half full", testLostTwins},
	{"small figures after a loss wait as they are asked", testSmallFiguresAfterALoss},
	{"permits are lent", testPermits},
	{"permits follow the ledger", testPermitsFollowTheLedger},
	{"games of permits are won", testGamesOfPermits},
	{"a permit is never lent twice", testPermitRace},
	{"permits of many nodes", testPermitsOfManyNodes},
	{"a restart forgets no permits", testPermitsAreKept},
	{"lost permits are doubted", testLostPermits},
}

// Run runs the suite. open makes a fresh instance with its clock at Base.
func Run(t *testing.T, open func(t *testing.T) *Instance) {
	for _, c := range suite {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

// testContext returns a context that ends a test that hangs. The longest test waits ten thousand
// times for the disk, for half a minute or more.
func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
