package access_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/access"
)

// line is a Turns with one place, behind which callers are lined up one after the other.
type line struct {
	t       *testing.T
	turns   *access.Turns
	queued  int
	order   chan string
	waiters sync.WaitGroup
}

// up makes a caller wait.
func (l *line) up(ctx context.Context, source, node string) {
	l.t.Helper()
	l.queued++
	l.waiters.Go(func() {
		leave, err := l.turns.Enter(ctx, source, node)
		if err != nil {
			l.order <- err.Error()
			return
		}
		l.order <- source + node
		leave()
	})
	for l.turns.Waiting() < l.queued {
		runtime.Gosched()
	}
}

func newLine(t *testing.T) (l *line, open func()) {
	t.Helper()
	l = &line{t: t, turns: access.NewTurns(1, 100), order: make(chan string, 100)}
	open, err := l.turns.Enter(t.Context(), "first", "")
	if err != nil {
		t.Fatal(err)
	}
	return l, open
}

func (l *line) in() string {
	l.waiters.Wait()
	close(l.order)
	var all []string
	for name := range l.order {
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

// A source that asks ten times as often as another is let in as often while the other asks, and so
// are the nodes of one source.
func TestTurns(t *testing.T) {
	l, open := newLine(t)
	for range 6 {
		l.up(t.Context(), "A", "1")
	}
	l.up(t.Context(), "A", "2")
	l.up(t.Context(), "B", "1")
	l.up(t.Context(), "B", "1")
	open()
	if got := l.in(); got != "A1 B1 A2 B1 A1 A1 A1 A1 A1" {
		t.Errorf("in came %s", got)
	}
}

// A caller that gave up is passed over, and the next one comes in.
func TestWhoGivesUp(t *testing.T) {
	l, open := newLine(t)
	ctx, cancel := context.WithCancel(t.Context())
	l.up(ctx, "A", "1")
	l.up(t.Context(), "B", "1")
	cancel()
	if got := <-l.order; got != context.Canceled.Error() {
		t.Errorf("the one who gave up got %s", got)
	}
	open()
	if got := l.in(); got != "B1" {
		t.Errorf("in came %s", got)
	}
	if leave, err := l.turns.Enter(t.Context(), "A", "1"); err != nil {
		t.Error("the door has lost its room:", err)
	} else {
		leave()
	}
}

func TestASourceMayNotWaitForever(t *testing.T) {
	turns := access.NewTurns(0, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for i, want := range []error{context.Canceled, context.Canceled, access.ErrFull} {
		if _, err := turns.Enter(ctx, "A", fmt.Sprint(i)); !errors.Is(err, want) {
			t.Errorf("number %d: %v, want %v", i, err, want)
		}
	}
	if _, err := turns.Enter(ctx, "B", "1"); !errors.Is(err, context.Canceled) {
		t.Errorf("another source: %v", err)
	}
}

// While there is room no caller waits. A caller that does not want to wait is sent away if there is
// no room.
func TestEnterNow(t *testing.T) {
	turns := access.NewTurns(1, 1)
	leave, ok := turns.EnterNow()
	if !ok {
		t.Fatal("there is no room")
	}
	if _, ok := turns.EnterNow(); ok {
		t.Error("two are in, where one may be")
	}
	leave()
	if _, err := turns.Enter(t.Context(), "A", "1"); err != nil {
		t.Error(err)
	}
	if _, ok := turns.EnterNow(); ok {
		t.Error("two are in, where one may be")
	}
}

// Never are more in than may be, and in the end all room is there again, however callers come, go
// and give up.
func TestRoomIsNeitherLostNorMade(t *testing.T) {
	const room = 4
	seed := rand.Uint64()
	turns := access.NewTurns(room, 1000)
	var in, most atomic.Int64
	var all sync.WaitGroup
	for i := range 64 {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			for range 200 {
				ctx, cancel := context.WithCancel(t.Context())
				if random.IntN(3) == 0 {
					go cancel()
				}
				if leave, err := turns.Enter(ctx, fmt.Sprint(i%5), fmt.Sprint(i)); err == nil {
					now := in.Add(1)
					for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
					}
					in.Add(-1)
					leave()
				}
				cancel()
			}
		})
	}
	all.Wait()
	if most.Load() > room {
		t.Errorf("seed %d: %d were in at once", seed, most.Load())
	}
	var leaves []func()
	for range room {
		leave, err := turns.Enter(t.Context(), "last", "")
		if err != nil {
			t.Fatalf("seed %d: room is lost: %v", seed, err)
		}
		leaves = append(leaves, leave)
	}
	for _, leave := range slices.Backward(leaves) {
		leave()
	}
}
