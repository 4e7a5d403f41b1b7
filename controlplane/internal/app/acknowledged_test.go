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
	"github.com/weir-proxy/weir/test/redistest"
)

var acknowledgedSteps = flag.Int("steps", 30, "how many steps the game of acknowledged changes has")

// step changes something, or lets something happen to the store, while which more may be changed.
func step(g *ackgame.Game, server *redistest.Server) {
	switch g.Random.IntN(12) {
	case 0:
		server.Do("FLUSHALL")
	case 1: // It comes back empty.
		server.Kill()
		for range 1 + g.Random.IntN(3) {
			g.Draw()
		}
		server.Restart()
	case 2:
		server.Pause()
		g.Draw()
		server.Resume()
	default:
		g.Draw()
	}
}

// Two control planes take changes of all kinds at random while their Redis is emptied, killed and
// stopped: in the end everything that was acknowledged, and not overtaken, is so on both.
func TestAcknowledgedIsKept(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	server := redistest.Start(t)
	g := &ackgame.Game{T: t, Random: rand.New(rand.NewPCG(seed, 0)),
		Set: func(quota int) string { return fmt.Sprintf(ackgame.Set, quota) }}
	var planes [2]*plane
	for i := range planes {
		planes[i] = start(t, "", server.URL())
		planes[i].until("/readyz/store", http.StatusOK)
		g.Planes = append(g.Planes, func(method, path string, body []byte, header ...string) (int, []byte, error) {
			a, err := planes[i].try(method, path, body, header...)
			return a.status, a.body, err
		})
	}
	g.Begin()
	<-planes[1].poll(0)
	for range *acknowledgedSteps {
		step(g, server)
		// Until both have read it: what one alone has read dies with Redis if that dies at once.
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
