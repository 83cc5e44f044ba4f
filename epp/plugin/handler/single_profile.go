package handler

import (
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/epp"
)

// SingleProfile runs the only profile of the file for every request. No request is split. It has no parameters.
type SingleProfile struct{}

// NewSingleProfile returns the parameters with their defaults.
func NewSingleProfile() epp.Plugin { return &SingleProfile{} }

// Problems implements epp.Plugin.
func (*SingleProfile) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*SingleProfile) Build(*epp.Builder) (any, error) { return singleProfileHandler{}, nil }

type singleProfileHandler struct{}

// Stages implements epp.Handler.
func (singleProfileHandler) Stages(profiles []string) (epp.Stages, error) {
	if len(profiles) != 1 {
		return nil, fmt.Errorf("exactly one profile is run, there are %d (%s)",
			len(profiles), strings.Join(profiles, ", "))
	}
	return epp.Stages{epp.DecodeRow(profiles[0])}, nil
}
