package plugin

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool"
)

// FileDiscovery reads the endpoints from a file. Build does not read the file, so that a configuration can be checked on a
// machine that does not have it.
type FileDiscovery struct {
	pool.File `yaml:",inline"`
}

func newFileDiscovery() epp.Plugin { return &FileDiscovery{} }

// Build implements epp.Plugin.
func (p *FileDiscovery) Build(*epp.Builder) (any, error) {
	f := p.File
	return &f, nil
}
