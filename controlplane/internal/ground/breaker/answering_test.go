package breaker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
)

func TestAStoreIsSettledOnceItHasAnsweredForFiveSeconds(t *testing.T) {
	away := errors.New("away")
	var a breaker.Answering
	for _, c := range []struct {
		at      time.Duration
		err     error
		settled bool
	}{
		{0, away, false},
		{1 * time.Second, nil, false},
		{5999 * time.Millisecond, nil, false},
		{6 * time.Second, nil, true},
		{60 * time.Second, nil, true},
		{61 * time.Second, away, false},
		{70 * time.Second, nil, false},
		{75 * time.Second, nil, true},
	} {
		now := time.Unix(1000, 0).Add(c.at)
		if a.Note(c.err, now); a.Settled(now) != c.settled {
			t.Errorf("at %v: settled is %v", c.at, !c.settled)
		}
	}
}
