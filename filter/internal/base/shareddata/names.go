package shareddata

// Name is the letter that tells a value, or a family of values, from others of its space.
type Name byte

// All names, with the package that writes the value. tools/rules/shareddata_test.go refuses any
// other. The worker that holds the lease Leader asks the control plane for changes, and these
// packages write them (configsync/poll.go). A letter gets another meaning, and a value another
// form, only with another wire.Protocol, which the space begins with: an old and a new filter may
// run side by side.
const (
	// TokenSlot and WindowSlot begin the keys of bucketstore's tables, before the slot's number;
	// TableSizes is how many slots they have.
	TokenSlot  Name = 's'
	WindowSlot Name = 'w'
	TableSizes Name = 'z'

	// PolicySetVersion, PolicySet, PolicySetMark and PolicySetHeard are configsync's: the policy
	// set that the leader publishes, what the control plane calls it, and when it last confirmed
	// it.
	PolicySetVersion Name = 'v'
	PolicySet        Name = 'c'
	PolicySetMark    Name = 'm'
	PolicySetHeard   Name = 'a'
	// Leader is the lease of the VM that polls. InlineSet begins the keys that say since when the
	// process has an inline policy set, before the set's hash. Both are configsync's.
	Leader    Name = 'l'
	InlineSet Name = 'i'

	// ConsumerSet begins the keys of the consumers' table, before the number of the set;
	// ConsumerState is up to when it is known to be right. Both are consumers'. ConsumerSets is how
	// many sets the table has; the plugin writes it.
	ConsumerSet   Name = 'u'
	ConsumerState Name = 'r'
	ConsumerSets  Name = 'k'

	// PenaltySet begins the keys of the table of penalties, before the number of the set;
	// PenaltyState is up to which change of the control plane it has them. Both are penalties'.
	// PenaltySets is how many sets the table has; the plugin writes it.
	PenaltySet   Name = 'q'
	PenaltyState Name = 'g'
	PenaltySets  Name = 'y'

	// EnforcementVersion and Enforcement are enforcement's: what operators have ordered.
	EnforcementVersion Name = 'o'
	Enforcement        Name = 'e'

	// Failover is failover's: since when the control plane has not answered, and the steps since
	// then.
	Failover Name = 'f'
	// Nodes is how many nodes share the limits, by the last answer to a poll or to a call for
	// tokens; NodesAsked is that of the last call for tokens alone. Both are leasing's.
	Nodes      Name = 'n'
	NodesAsked Name = 'd'

	// InFlightSlot begins the keys of inflight's table, before the slot's number; InFlightSlots is
	// how many slots it has, InFlightWorkers which workers hold places.
	InFlightSlot    Name = 'h'
	InFlightSlots   Name = 'j'
	InFlightWorkers Name = 'x'

	// Upstream begins the keys of what is known of upstreams, before the bucket's; overload's.
	Upstream Name = 'b'
	// Process is the process's random number and secret, UnixOffset by how much Unix time is ahead
	// of the clock that decides. Both are the plugin's.
	Process    Name = 'p'
	UnixOffset Name = 't'
)
