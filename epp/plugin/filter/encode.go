package filter

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Encode keeps endpoints whose role label allows encode: those that turn images, audio and video into embeddings. It drops endpoints
// without the label. It has no parameters.
type Encode struct{}

// NewEncode returns the parameters with their defaults.
func NewEncode() epp.Plugin { return &Encode{} }

// Problems implements epp.Plugin.
func (*Encode) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*Encode) Build(*epp.Builder) (any, error) { return roleFilter(pd.RoleEncode), nil }
