package handler

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// HeaderProfile runs one profile for each request: the one that a header names. It is for callers that send the prefill and the
// decode of a request as two requests, so no request is split. If there is only one profile, it runs whatever the header says. A
// request that names a profile which does not exist is answered with 400; llm-d answers with 429.
type HeaderProfile struct {
	// HeaderName is the header that names the profile. Default EPP-Profile.
	HeaderName string `yaml:"headerName"`
	// DefaultProfile is the profile for requests without the header. Default decode. If there is no such profile, they are
	// answered with 400.
	DefaultProfile string `yaml:"defaultProfile"`
}

// NewHeaderProfile returns the parameters with their defaults.
func NewHeaderProfile() epp.Plugin {
	return &HeaderProfile{HeaderName: "EPP-Profile", DefaultProfile: string(epp.StageDecode)}
}

// Problems implements epp.Plugin.
func (p *HeaderProfile) Problems(report epp.Report) {
	if p.HeaderName == "" {
		report("headerName", "must not be empty")
	}
}

// Build implements epp.Plugin.
func (p *HeaderProfile) Build(*epp.Builder) (any, error) {
	return headerProfile{header: strings.ToLower(p.HeaderName), fallback: p.DefaultProfile}, nil
}

type headerProfile struct{ header, fallback string }

// Stages implements epp.Handler.
func (h headerProfile) Stages(profiles []string) (epp.Stages, error) {
	if len(profiles) == 0 {
		return nil, errors.New("there is no profile")
	}
	usual := profiles[0]
	if slices.Contains(profiles, h.fallback) {
		usual = h.fallback
	}
	return onlyStage(usual), nil
}

// Choices implements epp.Chooser.
func (h headerProfile) Choices(profiles []string) map[string]epp.Stages {
	choices := make(map[string]epp.Stages, len(profiles))
	for _, name := range profiles {
		choices[name] = onlyStage(name)
	}
	return choices
}

// onlyStage returns the stage of a profile that serves a request alone. A profile named after a role is for endpoints of that role.
func onlyStage(profile string) epp.Stages {
	row := epp.DecodeRow(profile)
	switch epp.Stage(profile) {
	case epp.StagePrefill:
		row.Stage, row.Role = epp.StagePrefill, pd.RolePrefill
	case epp.StageEncode:
		row.Stage, row.Role = epp.StageEncode, pd.RoleEncode
	}
	return epp.Stages{row}
}

// Choose implements epp.Chooser.
func (h headerProfile) Choose(r *epp.Request) string {
	return cmp.Or(strings.TrimSpace(r.Header(h.header)), h.fallback)
}
