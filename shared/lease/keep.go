package lease

import "github.com/weir-proxy/weir/shared/quota"

// scarcePerWindow: a window is scarce where it holds less than this part of its quota at most.
const scarcePerWindow = 20

// keepShare is how many of the available tokens a node may hold: as many as the limit earns in the
// time of a lease and a quarter of the bucket. Of one that several nodes share it is half of both,
// the second of the node's even share: a burst that goes on at other nodes lacks what this one
// holds. If the bucket could not serve all nodes with as much as this one wants, it gets half of
// its even share. So the last tokens do not lie on nodes that may not need them. Several nodes get
// none of what does not go round, and no node gets fewer than a request costs.
func keepShare(ask Ask, available int64) int64 {
	keep, nodes := max(ask.Keep, 0), max(ask.Nodes, 1)
	earned := ask.Params.Earned(ask.TTL())
	share := (available+3)/4 + earned
	if nodes > 1 {
		share = available/(8*nodes) + earned/2
	}
	if nodes > 1 && keep > available/nodes {
		share = min(share, available/(2*nodes))
	}
	if keep = min(keep, share, available); keep < ask.Cost {
		return 0
	}
	return keep
}

// scarceFor is in what time a scarce bucket earns what it holds at most. What rationing leaves of a
// bucket of tokens is there once; of a window it is lost in each.
func scarceFor(ask Ask, g Grant, backOff quota.Span) quota.Span {
	scarce := backOff * scarcePerBackOff
	if g.FullAfter > 0 {
		scarce = min(scarce, ask.Params.Window()/scarcePerWindow)
	}
	return scarce
}
