package changes_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/changes"
)

func TestCursors(t *testing.T) {
	r := changes.Revisions{3, 0, 1<<64 - 1, 4, 5, 6}
	if got, err := changes.Parse(r.String()); err != nil || got != r {
		t.Errorf("%q: %v, %v", r, got, err)
	}
	for _, text := range []string{"", "1", "1.2.3.4.5", "1.2.3.4.5.6.7", "1.2.3.4.5.x", "1.2.3.4.5.-6",
		"1.2.3.4.5.18446744073709551616", "1.2.3.4.5."} {
		if r, err := changes.Parse(text); err == nil {
			t.Errorf("%q is read as %v", text, r)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("1.2.3.4.5.6")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := changes.Parse(text)
		if err != nil {
			return
		}
		if again, err := changes.Parse(r.String()); err != nil || again != r {
			t.Errorf("%q: %v, then %v, %v", text, r, again, err)
		}
	})
}

// A reader hears of a change within 200 ms, of nodes at most once a second, and of nothing at the
// end of its patience.
func TestAReaderHearsOfChanges(t *testing.T) {
	for _, c := range []struct {
		name string
		// topic changes at this time; -1 is none.
		topic   int
		at      time.Duration
		changed []changes.Topic
		within  time.Duration
	}{
		{"before it asks", 0, 0, []changes.Topic{"policyset"}, 0},
		{"while it waits", 1, 3 * time.Second, []changes.Topic{"enforcement"}, 3200 * time.Millisecond},
		{"nodes early", 4, 100 * time.Millisecond, []changes.Topic{"nodes"}, 1200 * time.Millisecond},
		{"nodes late", 4, 5 * time.Second, []changes.Topic{"nodes"}, 5200 * time.Millisecond},
		{"nothing", -1, 0, []changes.Topic{}, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				begin, seen := time.Now(), changes.Revisions{1, 2, 3, 4, 5, 6}
				now := changes.Wait(ctx, seen, func() changes.Revisions {
					now := seen
					if c.topic >= 0 && time.Since(begin) >= c.at {
						now[c.topic]++
					}
					return now
				})
				if changed := now.Since(seen); !slices.Equal(changed, c.changed) {
					t.Errorf("changed: %v, want %v", changed, c.changed)
				}
				if took := time.Since(begin); took > c.within {
					t.Errorf("it took %v, want at most %v", took, c.within)
				}
			})
		})
	}
}
