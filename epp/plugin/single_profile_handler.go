package plugin

import (
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/epp"
)

// SingleProfileHandler runs the only profile of the file for every request. No request is split. It has no parameters.
type SingleProfileHandler struct{}

func newSingleProfileHandler() epp.Plugin { return &SingleProfileHandler{} }

// Problems implements epp.Plugin.
func (*SingleProfileHandler) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*SingleProfileHandler) Build(*epp.Builder) (any, error) { return singleProfileHandler{}, nil }

type singleProfileHandler struct{}

// Stages implements epp.Handler.
func (singleProfileHandler) Stages(profiles []string) (epp.Stages, error) {
	if len(profiles) != 1 {
		return nil, fmt.Errorf("exactly one profile is run, there are %d (%s)",
			len(profiles), strings.Join(profiles, ", "))
	}
	return epp.Stages{epp.DecodeRow(profiles[0])}, nil
}
