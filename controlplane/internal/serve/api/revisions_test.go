package api

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestCursors(t *testing.T) {
	r := revisions{3, 0, 1<<64 - 1, 4, 5, 6}
	if got, err := parseCursor(r.String()); err != nil || got != r {
		t.Errorf("%q: %v, %v", r, got, err)
	}
	for _, text := range []string{"", "1", "1.2.3.4.5", "1.2.3.4.5.6.7", "1.2.3.4.5.x", "1.2.3.4.5.-6",
		"1.2.3.4.5.18446744073709551616", "1.2.3.4.5."} {
		if r, err := parseCursor(text); err == nil {
			t.Errorf("%q is read as %v", text, r)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("1.2.3.4.5.6")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseCursor(text)
		if err != nil {
			return
		}
		if again, err := parseCursor(r.String()); err != nil || again != r {
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
		changed []topic
		within  time.Duration
	}{
		{"before it asks", 0, 0, []topic{"policyset"}, 0},
		{"while it waits", 1, 3 * time.Second, []topic{"enforcement"}, 3200 * time.Millisecond},
		{"nodes early", 4, 100 * time.Millisecond, []topic{"nodes"}, 1200 * time.Millisecond},
		{"nodes late", 4, 5 * time.Second, []topic{"nodes"}, 5200 * time.Millisecond},
		{"nothing", -1, 0, []topic{}, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				begin, seen := time.Now(), revisions{1, 2, 3, 4, 5, 6}
				now := awaitChange(ctx, seen, func() revisions {
					now := seen
					if c.topic >= 0 && time.Since(begin) >= c.at {
						now[c.topic]++
					}
					return now
				})
				if changed := now.changedSince(seen); !slices.Equal(changed, c.changed) {
					t.Errorf("changed: %v, want %v", changed, c.changed)
				}
				if took := time.Since(begin); took > c.within {
					t.Errorf("it took %v, want at most %v", took, c.within)
				}
			})
		})
	}
}
