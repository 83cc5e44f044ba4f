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
	// default) prefills it on decode. refuse answers 503. budget prefills a share of all requests on decode, as a sidecar
	// does, and answers 503 to the others. While prefill endpoints exist but a detector finds all of them full, local and
	// budget prefill that share on decode and answer 429 to the others, and refuse answers 429 to all.
	OnNoPrefill string `yaml:"onNoPrefill"`
	// FallbackRatio is that share, from 0 to 1. Default 0.1.
	FallbackRatio float64 `yaml:"fallbackRatio"`
	// FallbackBurst is how many of these requests there may be at once before the share counts. Default 20. With 0 there is
	// none.
	FallbackBurst int `yaml:"fallbackBurst"`

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
	// Encode names the profile that picks the endpoints that encode images, audio and video. Default "": encode. It runs only if
	// deciders.encode names a decider.
	Encode string `yaml:"encode"`
}

// DeciderNames names the plugin that decides whether a stage runs on another pod.
type DeciderNames struct {
	// Prefill names the decider about prefill. Default "": prompts are computed on another pod only if the client forces it.
	Prefill string `yaml:"prefill"`
	// Encode names the decider about encode, usually an always-disagg-multimodal-decider. Default "": what computes the prompt also
	// encodes. The picked endpoints are named to the sidecar, which has them encode, if its --ec-connector is set. They share the
	// items of a request: the picker of the encode profile says how many there are.
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
	return &DisaggProfile{StageOrder: decodeFirst, PrefillCandidates: prefillCandidates, OnNoPrefill: prefillLocal,
		FallbackRatio: pd.FallbackRatio, FallbackBurst: pd.FallbackBurst}
}

// Correct implements epp.Corrector. It corrects nothing, and warns of what has no effect.
func (p *DisaggProfile) Correct(warn epp.Report) {
	_, name := p.encodeDecider()
	switch {
	case name != "":
	case p.Profiles.Encode != "":
		warn("profiles.encode", "has no effect without deciders.encode")
	case p.EncodeProfile != "":
		warn("encodeProfile", "has no effect without encodeDeciderPluginName")
	}
}

// Problems implements epp.Plugin.
func (p *DisaggProfile) Problems(report epp.Report) {
	if !slices.Contains([]string{decodeFirst, prefillFirst}, p.StageOrder) {
		report("stageOrder", "must be %s or %s, got %q", decodeFirst, prefillFirst, p.StageOrder)
	}
	if _, known := onNoPrefill[p.OnNoPrefill]; !known {
		report("onNoPrefill", "must be %s, %s or %s, got %q", prefillLocal, prefillBudget, prefillRefuse, p.OnNoPrefill)
	}
	if !(p.FallbackRatio >= 0 && p.FallbackRatio <= 1) {
		report("fallbackRatio", "must be from 0 to 1, got %v", p.FallbackRatio)
	}
	if p.FallbackBurst < 0 {
		report("fallbackBurst", "must not be negative, got %d", p.FallbackBurst)
	}
	if p.PrefillCandidates < 1 || p.PrefillCandidates > pd.MaxTargets {
		report("prefillCandidates", "must be from 1 to %d, got %d", pd.MaxTargets, p.PrefillCandidates)
	}
	if field, name := p.decider(); name != "" && p.StageOrder == prefillFirst {
		report(field, "must be empty with stageOrder %s, which prefills every request remotely", prefillFirst)
	}
	if p.Profiles == (StageNames{}) && p.Deciders == (DeciderNames{}) {
		return
	}
	for _, flat := range []struct{ field, value string }{
		{"decodeProfile", p.DecodeProfile}, {"prefillProfile", p.PrefillProfile}, {"encodeProfile", p.EncodeProfile},
		{"prefillDeciderPluginName", p.PrefillDeciderPluginName}, {"deciderPluginName", p.DeciderPluginName},
		{"encodeDeciderPluginName", p.EncodeDeciderPluginName},
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

// encodeDecider returns the name of the decider about encode, and the parameter that names it.
func (p *DisaggProfile) encodeDecider() (field, name string) {
	if p.Deciders.Encode != "" {
		return "deciders.encode", p.Deciders.Encode
	}
	return "encodeDeciderPluginName", p.EncodeDeciderPluginName
}

// References implements epp.Referrer.
func (p *DisaggProfile) References() map[string]string {
	prefill, prefillName := p.decider()
	encode, encodeName := p.encodeDecider()
	return param.References(prefill, prefillName, encode, encodeName)
}

// Build implements epp.Plugin.
func (p *DisaggProfile) Build(b *epp.Builder) (any, error) {
	h := disaggHandler{
		decode:  cmp.Or(p.Profiles.Decode, p.DecodeProfile),
		prefill: cmp.Or(p.Profiles.Prefill, p.PrefillProfile),
		encode:  cmp.Or(p.Profiles.Encode, p.EncodeProfile, string(epp.StageEncode)),
		split:   epp.PrefillRow("", p.PrefillCandidates),
	}
	h.split.OnNone = onNoPrefill[p.OnNoPrefill]
	h.split.FallbackRatio, h.split.FallbackBurst = p.FallbackRatio, p.FallbackBurst
	var err error
	if h.encoding, err = referDecider(b, p.encodeDecider); err != nil {
		return nil, err
	}
	if p.StageOrder == prefillFirst {
		h.split.Decider.Decider = alwaysRemote{}
		return h, nil
	}
	if h.split.Decider, err = referDecider(b, p.decider); err != nil {
		return nil, err
	}
	return h, nil
}

// referDecider returns the decider that a parameter names, none if it names none.
func referDecider(b *epp.Builder, named func() (field, name string)) (epp.NamedDecider, error) {
	field, name := named()
	if name == "" {
		return epp.NamedDecider{}, nil
	}
	decider, err := param.Refer[epp.Decider](b, field, name)
	return epp.NamedDecider{Name: name, Decider: decider}, err
}

// disaggHandler finds the profiles of the stages. For decode and prefill, an empty name means the stage's default name.
type disaggHandler struct {
	decode, prefill, encode string
	split                   epp.StageRow     // the prefill stage, but for its profile
	encoding                epp.NamedDecider // of the encode stage, which is left out without one
	port                    uint16           // of the decode stage; 0 = each endpoint's own
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
	stages[0].Port = h.port
	if h.encoding.Decider != nil {
		stages = append(stages, epp.EncodeRow(find(epp.StageEncode, h.encode), h.encoding))
	}
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
		// As in llm-d, the encode profile may be there without a decider that has it run.
		if name != h.encode && !slices.ContainsFunc(stages, func(row epp.StageRow) bool { return row.Profile == name }) {
			errs = append(errs, fmt.Errorf("profile %q is run by no stage", name))
		}
	}
	return stages, errors.Join(errs...)
}
