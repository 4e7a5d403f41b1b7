package cli

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// shownFor is the time for which a change counts as seen, mostShown the largest number of changes
// that are remembered.
const (
	shownFor  = time.Hour
	mostShown = 100
)

// change is a change of a control plane's policy set that a command shows or makes.
type change struct {
	// key is a hash of the control plane, the command and its arguments.
	key string
	// again is the command that shows the change.
	again string
}

func changeAt(server, again string, given ...string) change {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", server, given))
	return change{fmt.Sprintf("%x", sum[:16]), again}
}

// shownVersion is the version that a change was shown for, and the time.
type shownVersion struct {
	Version string    `json:"version"`
	At      time.Time `json:"at"`
}

// shownFile returns the path of the file with shown changes; empty if the user has no folder for
// it.
func shownFile() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "weir", "shown.json")
}

// readShown returns the remembered changes. A file that cannot be read counts as empty: it is a
// help, not a lock.
func readShown() map[string]shownVersion {
	all := map[string]shownVersion{}
	text, err := os.ReadFile(shownFile())
	if err != nil || json.Unmarshal(text, &all) != nil {
		return map[string]shownVersion{}
	}
	maps.DeleteFunc(all, func(_ string, s shownVersion) bool { return time.Since(s.At) > shownFor })
	return all
}

// storeShown remembers the version that the change was shown for; none if the change was made
// since.
func (c change) storeShown(version string) {
	all := readShown()
	delete(all, c.key)
	if _, err := strconv.ParseUint(version, 10, 64); err == nil && len(all) < mostShown {
		all[c.key] = shownVersion{version, time.Now()}
	}
	text, err := json.Marshal(all)
	if err != nil || os.MkdirAll(filepath.Dir(shownFile()), 0o700) != nil {
		return
	}
	own := fmt.Sprintf("%s.%d", shownFile(), os.Getpid())
	if os.WriteFile(own, text, 0o600) == nil {
		_ = os.Rename(own, shownFile()) // A change that is not remembered is made unasked, as the first time.
	}
}

// noteShown remembers that a change was shown for the current version, or forgets a change that was
// made.
func (c change) noteShown(current answer, only bool) {
	version := ""
	if only {
		version = versionOf(current)
	}
	c.storeShown(version)
}

// checkShown returns an error if the change was shown for another version than the current version:
// the change would overwrite newer changes that its author has not seen.
func (c change) checkShown(current answer) error {
	now := versionOf(current)
	s, shown := readShown()[c.key]
	if !shown || s.Version == now {
		return nil
	}
	return fmt.Errorf("the policy set is version %s by now, and this change was shown of version %s: "+
		"weir diff %[2]s %[1]s shows the changes since; look again with %[3]s, or give "+
		"--if-version %[1]s", now, s.Version, c.again)
}
