package app_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/ackgame"
	"github.com/weir-proxy/weir/test/support/redistest"
)

var acknowledgedSteps = flag.Int("steps", 30, "how many steps the game of acknowledged changes has")

// faults are the faults that a store can have. While a fault lasts, it lets more be changed.
type faults interface {
	// strike has one of the faults happen; draw changes something.
	strike(t *testing.T, random *rand.Rand, draw func())
	url() string
}

// alone is a Redis. If it is killed, it starts again with its dump, if there is one on disk.
type alone struct {
	*redistest.Server
	dir     string
	restore func()
}

func startAlone(t *testing.T) faults {
	dir := t.TempDir()
	return &alone{Server: redistest.Start(t, "--dir", dir), dir: dir}
}

func (a *alone) url() string { return a.URL() }

func (a *alone) strike(t *testing.T, random *rand.Rand, draw func()) {
	switch random.IntN(6) {
	case 0:
		t.Log("it is emptied")
		a.Do("FLUSHALL")
	case 1: // It comes back empty, or as it was when it was last saved.
		t.Log("it is killed; it has an older dump:", a.restore != nil)
		a.Kill()
		for range 1 + random.IntN(3) {
			draw()
		}
		if a.restore != nil {
			a.restore()
		}
		a.Restart()
	case 2:
		a.Pause()
		draw()
		a.Resume()
	case 3:
		a.restore = backup(t, a.Server, a.dir)
	default:
		draw()
	}
}

// watched is a primary and its replica, which change places by the Sentinels' word.
type watched struct{ *redistest.Sentinels }

func startWatched(t *testing.T) faults { return &watched{redistest.StartSentinels(t)} }

func (w *watched) url() string { return w.URL() }

func (w *watched) strike(t *testing.T, random *rand.Rand, draw func()) {
	if random.IntN(8) > 0 {
		draw()
		return
	}
	from, to := w.Primary, w.Replica
	if random.IntN(2) == 0 {
		from.Do("CLIENT", "PAUSE", "3000", "WRITE")
	}
	if got := w.Watchers[random.IntN(3)].Do("SENTINEL", "FAILOVER", redistest.MasterName); got != "+OK" {
		t.Logf("no failover: %s", got) // The last one has not ended.
		draw()
		return
	}
	for end := time.Now().Add(20 * time.Second); !to.IsPrimary(); {
		if time.Now().After(end) {
			t.Fatal("the replica does not take over")
		}
		draw()
	}
	t.Log("the replica has taken over")
	w.Primary, w.Replica = to, from
	draw()
}

// Two control planes take changes of all kinds at random while their Redis is emptied, killed,
// stopped and set back to an older dump, or is replaced by its replica: in the end everything that
// was acknowledged, and not overtaken, is so on both.
func TestAcknowledgedIsKept(t *testing.T) {
	for name, begin := range map[string]func(*testing.T) faults{"one Redis": startAlone, "Sentinels": startWatched} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play(t, begin(t))
		})
	}
}

func play(t *testing.T, store faults) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	g := &ackgame.Game{T: t, Random: rand.New(rand.NewPCG(seed, 0)),
		Set: func(quota int) string { return fmt.Sprintf(ackgame.Set, quota) }}
	var planes [2]*plane
	for i := range planes {
		planes[i] = start(t, "", store.url())
		planes[i].until("/readyz/store", http.StatusOK)
		g.Planes = append(g.Planes, func(method, path string, body []byte, header ...string) (int, []byte, error) {
			a, err := planes[i].try(method, path, body, header...)
			return a.status, a.body, err
		})
	}
	g.Begin()
	<-planes[1].poll(0)
	for range *acknowledgedSteps {
		if g.Random.IntN(2) == 0 {
			store.strike(t, g.Random, g.Draw)
		} else {
			g.Draw()
		}
		// Wait until both have read it: a change that only one has read dies with Redis if Redis
		// dies at once.
		time.Sleep(time.Duration(300+g.Random.IntN(400)) * time.Millisecond)
	}
	var wrong []string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if wrong = g.Wrong(); len(wrong) == 0 {
			break
		}
	}
	t.Log(g)
	if len(wrong) > 0 {
		t.Errorf("seed %d: %s", seed, strings.Join(wrong, "\n"))
	}
	if g.Made == 0 {
		t.Error("no changes were acknowledged")
	}
}
