package redistest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Slots is how many slots a cluster has.
const Slots = 16384

// NodeTimeout is after how long a member of a cluster with replicas, or a server that Sentinels
// watch, counts as dead.
const NodeTimeout = 500 * time.Millisecond

// patientTimeout is the same where no replica waits to take over: a busy machine that stops a
// server for a while must not make the others answer CLUSTERDOWN.
const patientTimeout = 5 * time.Second

// meetAgain is after how long members that do not know each other meet again. A MEET during their
// handshake changes nothing.
const meetAgain = 200 * time.Millisecond

// Cluster is a Redis Cluster that covers all slots.
type Cluster struct {
	t testing.TB
	// Primaries share the slots evenly, in order.
	Primaries []*Server
	// Replicas are empty, or the i-th is the replica of the i-th primary.
	Replicas []*Server
}

// StartCluster starts a cluster with the given number of primaries, each with a replica if wanted;
// the options are for all servers. It ends with the test.
func StartCluster(t testing.TB, primaries int, replicated bool, options ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	buses := map[*Server]int{}
	timeout := patientTimeout
	if replicated {
		timeout = NodeTimeout
	}
	member := func() *Server {
		bus := freePort(t)
		s := Start(t, append([]string{
			"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus), "--repl-diskless-sync-delay", "0",
			"--cluster-node-timeout", strconv.FormatInt(timeout.Milliseconds(), 10),
			"--cluster-replica-validity-factor", "0", // However little it knows, a replica is better than nothing.
		}, options...)...)
		buses[s] = bus
		return s
	}
	for i := range primaries {
		s := member()
		c.must(s, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*Slots/primaries), strconv.Itoa((i+1)*Slots/primaries-1))
		c.must(s, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		c.Primaries = append(c.Primaries, s)
	}
	for range primaries {
		if replicated {
			c.Replicas = append(c.Replicas, member())
		}
	}
	c.introduce(buses)
	c.AwaitWhole()
	for i, s := range c.Replicas {
		c.must(s, "CLUSTER", "REPLICATE", c.Primaries[i].Do("CLUSTER", "MYID"))
	}
	for i, s := range c.Replicas {
		c.Primaries[i].awaitReplica()
		for _, other := range c.members() { // All must know whose replica it is, or they do not vote for it.
			other.await(s.Do("CLUSTER", "MYID"), "CLUSTER", "REPLICAS", c.Primaries[i].Do("CLUSTER", "MYID"))
		}
	}
	return c
}

func (c *Cluster) members() []*Server {
	return append(append([]*Server(nil), c.Primaries...), c.Replicas...)
}

func (c *Cluster) must(s *Server, args ...string) {
	c.t.Helper()
	if got := s.Do(args...); got != "+OK" {
		c.t.Fatalf("%s says %s", strings.Join(args, " "), got)
	}
}

// introduce lets every two members meet until they know each other. A server gives up a handshake
// that takes too long, so on a busy machine a MEET can come to nothing.
func (c *Cluster) introduce(buses map[*Server]int) {
	c.t.Helper()
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(meetAgain) {
		strangers := 0
		for i, s := range c.members() {
			for _, other := range c.members()[:i] {
				if !s.knows(other) || !other.knows(s) {
					c.must(s, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(other.port), strconv.Itoa(buses[other]))
					strangers++
				}
			}
		}
		if strangers == 0 {
			return
		}
	}
	c.t.Fatalf("the members of the cluster have not met within %v", startTimeout)
}

// knows reports whether a member has met another: before the end of their handshake the other's id
// is missing.
func (s *Server) knows(other *Server) bool {
	return strings.Contains(s.Do("CLUSTER", "NODES"), other.Do("CLUSTER", "MYID"))
}

// AwaitWhole waits until every member knows all others and says that all slots are served.
func (c *Cluster) AwaitWhole() {
	c.t.Helper()
	for _, s := range c.members() {
		s.await(fmt.Sprintf("cluster_known_nodes:%d\r\n", len(c.members())), "CLUSTER", "INFO")
		s.await("cluster_state:ok", "CLUSTER", "INFO") // That may say so of a part of the slots.
		s.await(fmt.Sprintf("cluster_slots_ok:%d\r\n", Slots), "CLUSTER", "INFO")
	}
}

// URL names all members, for clients that take further ones as parameters addr.
func (c *Cluster) URL() string {
	url := "redis://" + c.Primaries[0].Addr() + "?cluster=true"
	for _, s := range c.members()[1:] {
		url += "&addr=" + s.Addr()
	}
	return url
}

// Slot returns the slot of a key.
func (c *Cluster) Slot(key string) int {
	c.t.Helper()
	slot, err := strconv.Atoi(strings.TrimPrefix(c.Primaries[0].Do("CLUSTER", "KEYSLOT", key), ":"))
	if err != nil {
		c.t.Fatal(err)
	}
	return slot
}

// Primary returns the primary that had a slot at first.
func (c *Cluster) Primary(slot int) (index int) {
	for (index+1)*Slots/len(c.Primaries) <= slot {
		index++
	}
	return index
}

// MoveSlot moves a slot and the keys in it while clients go on, as resharding does.
func (c *Cluster) MoveSlot(slot int, from, to *Server) {
	c.t.Helper()
	number, target := strconv.Itoa(slot), to.Do("CLUSTER", "MYID")
	c.must(to, "CLUSTER", "SETSLOT", number, "IMPORTING", from.Do("CLUSTER", "MYID"))
	c.must(from, "CLUSTER", "SETSLOT", number, "MIGRATING", target)
	for {
		keys := strings.Fields(from.Do("CLUSTER", "GETKEYSINSLOT", number, "10"))
		if len(keys) == 0 {
			break
		}
		args := append([]string{"MIGRATE", "127.0.0.1", strconv.Itoa(to.port), `""`, "0", "5000", "KEYS"}, keys...)
		if got := from.Do(args...); got != "+OK" && got != "+NOKEY" { // They may expire in between.
			c.t.Fatalf("MIGRATE says %s", got)
		}
	}
	c.must(to, "CLUSTER", "SETSLOT", number, "NODE", target)
	c.must(from, "CLUSTER", "SETSLOT", number, "NODE", target)
}
