package answer_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// The table as docs/integrate/for-api-consumers.md and docs/choose/answers.md have it. An item is:
// statuses, type, whether it counts for a penalty, has a Retry-After, and says x-envoy-ratelimited,
// and the sentence.
func TestTheTableOfReasons(t *testing.T) {
	const per = "Policy p allows 5 per 1h"
	rows := map[policy.Reason]string{
		policy.ReasonQuota: "429 8 #quota-exceeded counts waits marked " + per +
			", and that is used up. Try again in 7 seconds.",
		policy.ReasonTooDear: "429 8 #quota-exceeded marked " +
			"This request costs 9, and policy p never allows more than 5 at once: waiting does not help.",
		policy.ReasonAbsent: "403 7 about:blank " +
			"Policy p needs to know whose request this is, and the request does not say.",
		policy.ReasonBadCost: "400 3 about:blank " +
			"Policy p needs a cost, a whole number up to its maximum, and the request names none.",
		policy.ReasonFailure: "429 8 #temporary-reduced-capacity waits marked " +
			"The limiter cannot reach the counters of policy p now. Try again in 7 seconds.",
		policy.ReasonTooManyWaiting: "429 8 #temporary-reduced-capacity waits marked " +
			"Too many requests wait for policy p already. Try again in 7 seconds.",
		policy.ReasonContended: "429 8 #temporary-reduced-capacity waits marked " +
			"Too many requests ask for the same count of policy p at once. Try again in 7 seconds.",
		policy.ReasonInFlight: "429 8 #quota-exceeded counts waits marked " +
			"Policy p allows 5 requests at the same time, and all places are in use. Try again in 7 seconds.",
		policy.ReasonSuspended: "429 8 #quota-exceeded marked " +
			"Policy p is suspended for this caller: its quota is 0, and waiting does not help.",
		policy.ReasonPenalty: "429 8 #abnormal-usage-detected waits marked " +
			"Policy p has refused this caller too often, so all its requests are refused until the " +
			"penalty ends. Try again in 7 seconds.",
		policy.ReasonShed: "503 14 #temporary-reduced-capacity waits marked " +
			"What policy p protects has more to do than it can. Try again in 7 seconds.",
		policy.ReasonSeveral: "400 3 about:blank " +
			"Policy p needs to know whose request this is, and the request names several.",
	}
	if len(answer.Kinds) != len(policy.Reasons) || len(rows) != len(policy.Reasons) {
		t.Errorf("%d rows for %d kinds of %d reasons", len(rows), len(answer.Kinds), len(policy.Reasons))
	}
	for reason, want := range rows {
		by := policy.ByLocal
		if reason == policy.ReasonFailure {
			by = policy.ByFailureDeny
		}
		if got := row(t, reason, by); got != want {
			t.Errorf("%v:\n%s\nwant\n%s", reason, got, want)
		}
	}
	alone := " waits marked The limiter cannot reach the counters of policy p now, and this proxy admits no more alone."
	lost := "429 8 #temporary-reduced-capacity waits marked The limiter has lost how much this caller had used of " +
		"policy p, and allows less of it for a time. Try again in 7 seconds."
	bys := []policy.DecisionSource{policy.ByLocal, policy.ByCentral, policy.ByCachedDenial, policy.ByOptimistic}
	for _, by := range bys {
		if got := row(t, policy.ReasonFailure, by); got != lost {
			t.Errorf("%v: %s", by, got)
		}
	}
	if got := row(t, policy.ReasonFailure, policy.ByShare); !strings.Contains(got, alone) {
		t.Errorf("a share: %s", got)
	}
}

// row is how a reason is answered, in words.
func row(t *testing.T, reason policy.Reason, by policy.DecisionSource) string {
	t.Helper()
	about := answer.About{Reason: reason, Source: by, Policy: []byte("p"), Limit: limit(t), Cost: 1}
	about.Limit.InFlight = reason == policy.ReasonInFlight
	if reason == policy.ReasonTooDear {
		about.Cost = 9
	}
	return text(&about)
}

func text(about *answer.About) string {
	kind, retry := about.Kind(), int64(0)
	kindOf := kind.Type[max(strings.IndexByte(kind.Type, '#'), 0):]
	words := []string{strconv.Itoa(int(kind.Status)), strconv.Itoa(int(kind.GRPC)), kindOf}
	if kind.Counts {
		words = append(words, "counts")
	}
	if kind.Waits {
		words, retry = append(words, "waits"), 7
	}
	if kind.Marked {
		words = append(words, "marked")
	}
	return strings.Join(append(words, string(about.AppendSentence(nil, retry))), " ")
}

func limit(t *testing.T) *policy.Limit {
	t.Helper()
	l, err := policy.NewLimit(policy.Counting{}, 5, quota.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &l
}

// An answer says that the limit is used up only if that is the caller's own use.
func TestOnlyTheCallersOwnUseIsUsedUp(t *testing.T) {
	for reason := range answer.Kinds {
		for by := range policy.DecisionSource(len(policy.Sources)) {
			for _, inFlight := range []bool{false, true} {
				about := answer.About{
					Reason: policy.Reason(reason), Source: by, Policy: []byte("p"), Limit: limit(t), Cost: 2,
				}
				about.Limit.InFlight = inFlight
				said := string(about.AppendSentence(nil, 1))
				uses := strings.Contains(said, "used up") || strings.Contains(said, "all places are in use")
				if uses != about.Kind().Counts {
					t.Errorf("%v by %v: %s", about.Reason, by, said)
				}
				if about.Left = 1; strings.Contains(string(about.AppendSentence(nil, 1)), "used up") {
					t.Errorf("%v by %v, with a token left: %s", about.Reason, by, about.AppendSentence(nil, 1))
				}
			}
		}
	}
	for ban, said := range answer.Bans {
		if strings.Contains(said, "used up") || said == "" {
			t.Errorf("%d: %s", match.Ban(ban), said)
		}
	}
}

// The sentence for a cost above the remaining tokens has both numbers.
func TestWordsOfACostAboveWhatIsLeft(t *testing.T) {
	about := answer.About{Policy: []byte("p"), After: []byte("critical"), Limit: limit(t), Cost: 4, Left: 3}
	want := "Policy p allows 5 per 1h to the classes after critical. This request costs 4, and 3 are left. " +
		"Try again in 1 second."
	if got := string(about.AppendSentence(nil, 1)); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	about.Left = 1
	want = strings.Replace(want, "3 are left", "1 is left", 1)
	if got := string(about.AppendSentence(nil, 1)); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// A store that has lost which requests are under way does not say that all places are in use.
func TestWordsOfALostCount(t *testing.T) {
	about := answer.About{Reason: policy.ReasonFailure, Source: policy.ByCentral, Policy: []byte("p"), Limit: limit(t)}
	about.Limit.InFlight = true
	want := "429 8 #temporary-reduced-capacity waits marked " +
		"The limiter has lost how many requests are under way for policy p, and counts them anew. " +
		"Try again in 7 seconds."
	if got := text(&about); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if about.Answer() != policy.AnswerFailure {
		t.Error("a lost count is answered as no failure")
	}
	about.Elsewhere = true
	if about.Answer() != policy.AnswerQuota {
		t.Error("places that others hold are answered otherwise than those under way here")
	}
	want = "429 8 #temporary-reduced-capacity waits marked " +
		"Policy p has no place for this request here: the others are held for other proxies. " +
		"Try again in 7 seconds."
	if got := text(&about); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
