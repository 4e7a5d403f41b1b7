package app

import (
	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
	"github.com/weir-proxy/weir/controlplane/internal/grant/regions"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/shared/quota"
)

// joinRegions makes the control plane one of several regions; it returns nil if the settings name
// none.
func (a *App) joinRegions(s *settings.Regions, sets *policies.Service) (*regions.Service, error) {
	if s == nil {
		return nil, nil
	}
	document, err := redisstore.Open(s.URL, a.log)
	if err != nil {
		return nil, err
	}
	a.document = document
	grace := func(name string, part regions.Part) quota.Span {
		if current, _ := sets.Current(); current != nil {
			if p, ok := current.Policy(name); ok {
				return part.Grace(p)
			}
		}
		return quota.MaxWindow // The policy is gone. No policy has a longer window.
	}
	a.log.Info("sharing the quotas with other regions", "region", s.Region, "weights", s.Weights)
	uses, holds := docs.Cell{Store: a.store, Name: docs.Region}, docs.Cell{Store: document, Name: docs.Regions}
	return regions.New(s.Config, uses, holds, grace, a.log, a.clock.Now), nil
}
