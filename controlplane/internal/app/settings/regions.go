package settings

import (
	"regexp"

	"github.com/weir-proxy/weir/controlplane/internal/grant/regions"
)

// RegionFlags are given where several groups of control planes share the quotas.
type RegionFlags struct {
	Name    string           `help:"Region of this control plane, a name in --region-weights. All control planes of a region have the same --redis-url." env:"WEIR_REGION_NAME" placeholder:"NAME"`
	Weights map[string]int64 `help:"All regions, and their shares of a quota before any share has moved; the same text in every region." env:"WEIR_REGION_WEIGHTS" placeholder:"NAME=N;NAME=N"`
	URL     string           `help:"Redis that all regions can reach, for the document with the shares of all regions." env:"WEIR_REGION_URL" name:"url" placeholder:"URL"`
}

// Regions is a valid set of regions.
type Regions struct {
	regions.Config
	// URL is the URL of the Redis that all regions reach.
	URL string
}

var regionName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,31})$`)

// readRegions checks that all is given, or nothing.
func (r *resolver) readRegions(f RegionFlags) *Regions {
	if f.Name == "" && len(f.Weights) == 0 && f.URL == "" {
		return nil
	}
	if f.Name == "" || len(f.Weights) < 2 || f.URL == "" {
		r.addProblem("--region-name, --region-weights and --region-url (WEIR_REGION_NAME, WEIR_REGION_WEIGHTS, " +
			"WEIR_REGION_URL): regions need all three, and at least two weights")
		return nil
	}
	r.checkRedis("--region-url (WEIR_REGION_URL)", f.URL)
	for name, weight := range f.Weights {
		if !regionName.MatchString(name) || weight < 1 || weight > 1_000_000 {
			r.addProblem("--region-weights (WEIR_REGION_WEIGHTS): %q=%d: names are like eu-west-1, "+
				"weights 1 to 1000000", name, weight)
			return nil
		}
	}
	if f.Weights[f.Name] == 0 {
		r.addProblem("--region-name (WEIR_REGION_NAME): %q is not one of --region-weights", f.Name)
	}
	shares, err := regions.Normalise(f.Weights)
	if err != nil {
		r.addProblem("--region-weights (WEIR_REGION_WEIGHTS): %w", err)
	}
	return &Regions{Config: regions.Config{Region: f.Name, Weights: shares}, URL: f.URL}
}
