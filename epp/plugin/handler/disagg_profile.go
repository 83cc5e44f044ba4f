package handler

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
	"github.com/tandem-serving/tandem/pd"
)

// DisaggProfile runs the decode profile, then asks the decider whether another pod should compute the prompt, and if
// so runs the prefill profile. In llm-d, a decider without that profile turns it off silently; here it is an error.
type DisaggProfile struct {
	// StageOrder is decode-first (the default) or prefill-first. With prefill-first every prompt is computed on a prefill
	// pod, so no prefill decider may be named. In both cases the decode pod is picked first: what it has cached and the
	// client's P/D mode decide about prefill.
	StageOrder string `yaml:"stageOrder"`
	// Profiles names the profile of each stage.
	Profiles StageNames `yaml:"profiles"`
	// Deciders names the plugin that decides whether a stage runs on another pod.
	Deciders DeciderNames `yaml:"deciders"`
	// PrefillCandidates is how many prefill endpoints are named to the sidecar, best first. The sidecar tries the next one if
	// one fails. Default 3.
	PrefillCandidates int `yaml:"prefillCandidates"`
	// OnNoPrefill says what happens to a request that should be split while no prefill endpoint is available. local (the
	// default) prefills it on decode. refuse answers 503. budget prefills a tenth of all requests on decode, at most 20 at
	// once, as a sidecar does, and answers 503 to the others. While prefill endpoints exist but a detector finds all of them
	// full, local and budget do the same, and refuse answers 429.
	OnNoPrefill string `yaml:"onNoPrefill"`

	// DecodeProfile is profiles.decode in the older, flat form. A configuration must not mix the two forms.
	DecodeProfile string `yaml:"decodeProfile"`
	// PrefillProfile is profiles.prefill in the flat form.
	PrefillProfile string `yaml:"prefillProfile"`
	// EncodeProfile is profiles.encode in the flat form.
	EncodeProfile string `yaml:"encodeProfile"`
	// PrefillDeciderPluginName is deciders.prefill in the flat form.
	PrefillDeciderPluginName string `yaml:"prefillDeciderPluginName"`
	// DeciderPluginName is an older name of prefillDeciderPluginName. If both are set, prefillDeciderPluginName counts.
	DeciderPluginName string `yaml:"deciderPluginName"`
	// EncodeDeciderPluginName is deciders.encode in the flat form.
	EncodeDeciderPluginName string `yaml:"encodeDeciderPluginName"`
}

// StageNames names the profile of each stage.
type StageNames struct {
	// Decode names the profile that picks decode endpoints. Default "": decode.
	Decode string `yaml:"decode"`
	// Prefill names the profile that picks prefill endpoints. Default "": prefill if that profile exists; else nothing is
	// split.
	Prefill string `yaml:"prefill"`
	// Encode is not supported, and must be empty.
	Encode string `yaml:"encode"`
}

// DeciderNames names the plugin that decides whether a stage runs on another pod.
type DeciderNames struct {
	// Prefill names the decider about prefill. Default "": prompts are computed on another pod only if the client forces it.
	Prefill string `yaml:"prefill"`
	// Encode is not supported, and must be empty.
	Encode string `yaml:"encode"`
}

// The values of stageOrder and onNoPrefill.
const (
	decodeFirst   = "decode-first"
	prefillFirst  = "prefill-first"
	prefillLocal  = "local"
	prefillRefuse = "refuse"
	prefillBudget = "budget"
)

var onNoPrefill = map[string]epp.OnNone{
	prefillLocal: epp.NoneSkips, prefillBudget: epp.NoneSkipsWithinBudget, prefillRefuse: epp.NoneRefuses,
}

// prefillCandidates is the default of the parameter prefillCandidates.
const prefillCandidates = 3

// NewDisaggProfile returns the parameters with their defaults.
func NewDisaggProfile() epp.Plugin {
	return &DisaggProfile{StageOrder: decodeFirst, PrefillCandidates: prefillCandidates, OnNoPrefill: prefillLocal}
}

// Problems implements epp.Plugin.
func (p *DisaggProfile) Problems(report epp.Report) {
	if !slices.Contains([]string{decodeFirst, prefillFirst}, p.StageOrder) {
		report("stageOrder", "must be %s or %s, got %q", decodeFirst, prefillFirst, p.StageOrder)
	}
	if _, known := onNoPrefill[p.OnNoPrefill]; !known {
		report("onNoPrefill", "must be %s, %s or %s, got %q", prefillLocal, prefillBudget, prefillRefuse, p.OnNoPrefill)
	}
	if p.PrefillCandidates < 1 || p.PrefillCandidates > pd.MaxTargets {
		report("prefillCandidates", "must be from 1 to %d, got %d", pd.MaxTargets, p.PrefillCandidates)
	}
	if field, name := p.decider(); name != "" && p.StageOrder == prefillFirst {
		report(field, "must be empty with stageOrder %s, which prefills every request remotely", prefillFirst)
	}
	for _, encode := range []struct{ field, value string }{
		{"profiles.encode", p.Profiles.Encode}, {"encodeProfile", p.EncodeProfile},
		{"deciders.encode", p.Deciders.Encode}, {"encodeDeciderPluginName", p.EncodeDeciderPluginName},
	} {
		if encode.value != "" {
			report(encode.field, "encode stages are not served; remove it, and pods that prefill or decode encode as well")
		}
	}
	if p.Profiles == (StageNames{}) && p.Deciders == (DeciderNames{}) {
		return
	}
	for _, flat := range []struct{ field, value string }{
		{"decodeProfile", p.DecodeProfile}, {"prefillProfile", p.PrefillProfile},
		{"prefillDeciderPluginName", p.PrefillDeciderPluginName}, {"deciderPluginName", p.DeciderPluginName},
	} {
		if flat.value != "" {
			report(flat.field, "the older form must not be mixed with profiles and deciders; write it there")
		}
	}
}

// decider returns the name of the prefill decider, and the parameter that names it.
func (p *DisaggProfile) decider() (field, name string) {
	switch {
	case p.Deciders.Prefill != "":
		return "deciders.prefill", p.Deciders.Prefill
	case p.PrefillDeciderPluginName != "":
		return "prefillDeciderPluginName", p.PrefillDeciderPluginName
	}
	return "deciderPluginName", p.DeciderPluginName
}

// References implements epp.Referrer.
func (p *DisaggProfile) References() map[string]string { return param.References(p.decider()) }

// Build implements epp.Plugin.
func (p *DisaggProfile) Build(b *epp.Builder) (any, error) {
	h := disaggHandler{
		decode:  cmp.Or(p.Profiles.Decode, p.DecodeProfile),
		prefill: cmp.Or(p.Profiles.Prefill, p.PrefillProfile),
		split:   epp.PrefillRow("", p.PrefillCandidates),
	}
	h.split.OnNone = onNoPrefill[p.OnNoPrefill]
	if p.StageOrder == prefillFirst {
		h.split.Decider.Decider = alwaysRemote{}
		return h, nil
	}
	if field, name := p.decider(); name != "" {
		decider, err := param.Refer[epp.Decider](b, field, name)
		if err != nil {
			return nil, err
		}
		h.split.Decider = epp.NamedDecider{Name: name, Decider: decider}
	}
	return h, nil
}

// disaggHandler finds the profiles of the two stages. An empty name means the stage's default name.
type disaggHandler struct {
	decode, prefill string
	split           epp.StageRow // the prefill stage, but for its profile
}

// Stages implements epp.Handler.
func (h disaggHandler) Stages(profiles []string) (epp.Stages, error) {
	var errs []error
	find := func(stage epp.Stage, name string) string {
		wanted := cmp.Or(name, string(stage))
		if !slices.Contains(profiles, wanted) {
			errs = append(errs, fmt.Errorf("no profile %q for the %s stage, there is %s",
				wanted, stage, strings.Join(profiles, ", ")))
		}
		return wanted
	}
	stages := epp.Stages{epp.DecodeRow(find(epp.StageDecode, h.decode))}
	// Without a decider and without a profile of that name, requests are not split.
	if h.prefill != "" || h.split.Decider.Decider != nil || slices.Contains(profiles, string(epp.StagePrefill)) {
		row := h.split
		row.Profile = find(epp.StagePrefill, h.prefill)
		stages = append(stages, row)
		if row.Profile == stages[0].Profile {
			errs = append(errs, fmt.Errorf("profile %q cannot be that of both stages", row.Profile))
		}
	}
	for _, name := range profiles {
		if !slices.ContainsFunc(stages, func(row epp.StageRow) bool { return row.Profile == name }) {
			errs = append(errs, fmt.Errorf("profile %q is run by no stage", name))
		}
	}
	return stages, errors.Join(errs...)
}
