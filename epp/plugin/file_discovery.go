package plugin

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool"
)

// FileDiscovery finds the endpoints in a file. The instance is the *pool.File, which has not read the file yet: a
// configuration can be checked where there is none.
type FileDiscovery struct {
	pool.File `yaml:",inline"`
}

func newFileDiscovery() epp.Plugin { return &FileDiscovery{} }

// Build implements epp.Plugin.
func (p *FileDiscovery) Build(*epp.Builder) (any, error) {
	f := p.File
	return &f, nil
}
