package enforcement_test

import (
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
)

// A document is read as it was written, and its revision alone if that is known.
func TestADocumentIsKept(t *testing.T) {
	s, err := localstore.Open(t.TempDir(), slog.New(slog.DiscardHandler), localstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	kept := enforcement.Kept{In: s}
	until := time.Date(2041, 1, 1, 0, 0, 0, 0, time.UTC)
	stamp := enforcement.Stamp{ID: "one", Revision: 7, Time: time.Date(2040, 1, 2, 3, 4, 5, 678e6, time.UTC),
		By: "ädmin"}
	first := enforcement.Document{
		Revision: 1 << 41,
		Orders: enforcement.Orders{Stamp: stamp, List: []enforcement.Order{
			{State: enforcement.Off, Percent: 25, Policy: "api", Tier: "free", Reason: "too \"many\" refusals",
				Expires: &until, Since: stamp.Time, By: "me"},
			{State: enforcement.Shadow, Percent: 100, Reason: "looking", Since: stamp.Time, By: "me"},
		}},
		Bans: enforcement.Bans{Stamp: stamp, List: []enforcement.Ban{
			{Policy: "api", Key: "ff00000000000000000000000000000a", Reason: "abuse", Since: stamp.Time, By: "me"},
		}},
	}
	read := func(known uint64, want enforcement.Document) {
		t.Helper()
		if got, err := kept.Enforcement(t.Context(), known); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	read(0, enforcement.Document{})
	if err := kept.WriteEnforcement(t.Context(), enforcement.Write{Document: first}); err != nil {
		t.Fatal(err)
	}
	read(0, first)
	read(first.Revision, enforcement.Document{Revision: first.Revision})
}
