package lease

// keepShare is how many of the available tokens a node may hold: as many as the limit earns in the
// time of a lease and a quarter of its even share of the bucket. If the bucket could not serve all
// nodes with as much as this one wants, it gets half of its even share. So the last tokens do not
// lie on nodes that may not need them.
func keepShare(ask Ask, available int64) int64 {
	keep, nodes := max(ask.Keep, 0), max(ask.Nodes, 1)
	if nodes > 1 && keep > available/nodes {
		keep = min(keep, (available+2*nodes-1)/(2*nodes))
	}
	share := (available + 4*nodes - 1) / (4 * nodes)
	return min(keep, ask.Params.Earned(ask.TTL())+share, available)
}
