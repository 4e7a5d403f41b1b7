package localstore_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/localstore"
)

// earlier is a file with something in each of its lists, as a build left it that had no checksum of
// each counter. It lies at path.
func earlier(t *testing.T, e localstore.Earlier) (path string, file []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "weir.db")
	if err := os.WriteFile(path, ofEverything(t, e.Crashed), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.Write(path); err != nil {
		t.Fatal(err)
	}
	return path, content(t, path)
}

func content(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A file of an earlier build is taken over with all that it holds, after an orderly end and after a
// crash, and is one of this build from then on.
func TestAFileOfAnEarlierBuildIsTakenOver(t *testing.T) {
	for name, e := range map[string]localstore.Earlier{
		"closed": {}, "crashed": {Crashed: true},
		"closed and gone back to": {GoneBackTo: true}, "crashed and gone back to": {Crashed: true, GoneBackTo: true},
	} {
		t.Run(name, func(t *testing.T) { earlierIsTakenOver(t, e) })
	}
}

func earlierIsTakenOver(t *testing.T, e localstore.Earlier) {
	path, file := earlier(t, e)
	before := entries(t, file)
	if said := says(t, file); said != "" {
		t.Errorf("the first start says %s", said)
	}
	s := open(t, filepath.Dir(path), localstore.Options{SaveByHand: true})
	if said := says(t, content(t, path)); said != "" {
		t.Errorf("the start after a crash before the first save says %s", said)
	}
	want := int64(99)
	if e.Crashed {
		want = 50 // What a crash leaves of a bucket.
	}
	if g := one(t, s, 1, perHour(t, 100), 100); g.Waiting != want {
		t.Errorf("%d tokens of its bucket, want %d", g.Waiting, want)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if said := says(t, content(t, path)); said != "" {
		t.Errorf("the next start says %s", said)
	}
	for name, entry := range before {
		is := entries(t, content(t, path))[name]
		switch list, _, _ := strings.Cut(name, ` "`); {
		case list == "ledgers" && list != name && !e.GoneBackTo && is == entry:
			t.Errorf("%s has no checksum", name)
		case list != "ledgers" && list != "meta" && is != entry:
			t.Errorf("%s was %q and is %q", name, entry, is)
		}
	}
}

// A file of an earlier build that is not as it was closed is noticed as that build noticed it.
func TestADamagedFileOfAnEarlierBuild(t *testing.T) {
	_, file := earlier(t, localstore.Earlier{})
	for list, want := range map[string]string{"documents": `"documents" is not as it was saved`, "ledgers": "level=ERROR"} {
		tried := 0
		for name, entry := range entries(t, file) {
			if !strings.HasPrefix(name, list+` "`) {
				continue
			}
			tried++
			flipped := []byte(entry)
			flipped[len(flipped)-1] ^= 1
			b := bytes.ReplaceAll(file, []byte(entry), flipped)
			if said := says(t, b); !strings.Contains(said, want) {
				t.Errorf("%s: %q", name, said)
			}
		}
		if tried == 0 {
			t.Errorf("nothing of %q was flipped", list)
		}
	}
}
