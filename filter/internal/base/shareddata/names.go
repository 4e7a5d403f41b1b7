package shareddata

// Name is the letter that identifies a value, or a family of values, in its space.
type Name byte

// These are all names, with the package that writes the value. The test shareddata_test.go of
// tools/rules refuses any other writer. The worker with the lease Leader polls the control plane,
// and gives the news to these packages (configsync/poll.go). A letter gets another meaning, and a
// value another form, only with another wire.Protocol, with which the space begins: an old and a
// new filter may run side by side.
const (
	// TokenSlot and WindowSlot begin the keys of bucketstore's tables, before the slot's number.
	// TableSizes has the number of slots.
	TokenSlot  Name = 's'
	WindowSlot Name = 'w'
	TableSizes Name = 'z'

	// PolicySetVersion, PolicySet, PolicySetMark and PolicySetHeard are configsync's: the policy
	// set that the leader publishes with its version, the control plane's mark of it, and when the
	// control plane last confirmed it.
	PolicySetVersion Name = 'v'
	PolicySet        Name = 'c'
	PolicySetMark    Name = 'm'
	PolicySetHeard   Name = 'a'
	// Leader is the lease of the VM that polls. InlineSet begins the keys with the instant since
	// which the process has an inline policy set, before the set's hash. Both are configsync's.
	Leader    Name = 'l'
	InlineSet Name = 'i'

	// ConsumerSet begins the keys of the consumers' table, before the number of the set.
	// ConsumerState is the change up to which the table is current. Both are consumers'.
	// ConsumerSets is the number of sets in the table; the plugin writes it.
	ConsumerSet   Name = 'u'
	ConsumerState Name = 'r'
	ConsumerSets  Name = 'k'

	// PenaltySet begins the keys of the table of penalties, before the number of the set.
	// PenaltyState is the change up to which the table is current. Both are penalties'. PenaltySets
	// is the number of sets in the table; the plugin writes it.
	PenaltySet   Name = 'q'
	PenaltyState Name = 'g'
	PenaltySets  Name = 'y'

	// EnforcementVersion and Enforcement are enforcement's: the orders of operators.
	EnforcementVersion Name = 'o'
	Enforcement        Name = 'e'

	// Failover is failover's: since when the control plane has not answered, and the steps since
	// then.
	Failover Name = 'f'
	// Nodes is the number of nodes that share the limits, from the last answer to a poll or to a
	// call for tokens. NodesAsked is that number from the last call for tokens only. Both are
	// leasing's.
	Nodes      Name = 'n'
	NodesAsked Name = 'd'

	// InFlightSlot begins the keys of inflight's table, before the slot's number. InFlightSlots is
	// the number of slots, and InFlightWorkers the list of workers that hold places.
	InFlightSlot    Name = 'h'
	InFlightSlots   Name = 'j'
	InFlightWorkers Name = 'x'

	// Upstream begins the keys of the shared knowledge of upstreams, before the bucket's key; it is
	// overload's.
	Upstream Name = 'b'
	// Process is the process's random number and secret. UnixOffset is the time by which Unix time
	// is ahead of the deciding clock. Both are the plugin's.
	Process    Name = 'p'
	UnixOffset Name = 't'
)
