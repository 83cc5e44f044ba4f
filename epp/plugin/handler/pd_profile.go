package handler

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// PDProfile is the predecessor of disagg-profile-handler, with the meaning that it had. threshold decides about remote
// prefill, or the named decider does.
type PDProfile struct {
	// DecodeProfile names the profile of the decode stage. Default decode.
	DecodeProfile string `yaml:"decodeProfile"`
	// PrefillProfile names the profile of the prefill stage. Default prefill.
	PrefillProfile string `yaml:"prefillProfile"`
	// DeciderPluginName names the decider, which must be among the plugins. Default "": threshold decides.
	DeciderPluginName string `yaml:"deciderPluginName"`
	// Threshold is how many characters of a prompt must not be cached on the decode pod for remote prefill. Four characters
	// count as one token. With 0, every prompt is computed remotely. Default 100.
	Threshold *int `yaml:"threshold"`
	// HashBlockSize is ignored: the producer of cached tokens has its own block size.
	HashBlockSize int `yaml:"hashBlockSize"`
	// PrefixPluginType is ignored, as in llm-d.
	PrefixPluginType string `yaml:"prefixPluginType"`
	// PrefixPluginName is ignored, as in llm-d.
	PrefixPluginName string `yaml:"prefixPluginName"`
	// PrimaryPort is the port of every decode pod at which its sidecar serves all ranks, as for data-parallel-profile-handler. Default
	// 0: the gateway reaches each rank at its own port.
	PrimaryPort int `yaml:"primaryPort"`
}

const (
	charactersPerToken = 4
	pdThreshold        = 100 // characters
)

// NewPDProfile returns the parameters with their defaults.
func NewPDProfile() epp.Plugin {
	return &PDProfile{DecodeProfile: "decode", PrefillProfile: "prefill"}
}

// Problems implements epp.Plugin.
func (p *PDProfile) Problems(report epp.Report) {
	if p.Threshold != nil {
		param.AtLeast(report, "threshold", *p.Threshold, 0)
		if p.DeciderPluginName != "" {
			report("threshold", "cannot be combined with deciderPluginName")
		}
	}
	param.AtLeast(report, "hashBlockSize", p.HashBlockSize, 0)
	if p.PrimaryPort < 0 || p.PrimaryPort > maxPort {
		report("primaryPort", "must be from 0 to %d, got %d", maxPort, p.PrimaryPort)
	}
}

// References implements epp.Referrer.
func (p *PDProfile) References() map[string]string {
	return param.References("deciderPluginName", p.DeciderPluginName)
}

// Build implements epp.Plugin.
func (p *PDProfile) Build(b *epp.Builder) (any, error) {
	b.Log.Warn("pd-profile-handler is an old form; write a disagg-profile-handler with a prefix-based-pd-decider")
	h := disaggHandler{decode: p.DecodeProfile, prefill: p.PrefillProfile, split: epp.PrefillRow("", prefillCandidates), port: uint16(p.PrimaryPort)}
	if p.DeciderPluginName == "" {
		h.split.Decider.Decider = p.threshold()
		return h, nil
	}
	decider, err := param.Refer[epp.Decider](b, "deciderPluginName", p.DeciderPluginName)
	h.split.Decider = epp.NamedDecider{Name: p.DeciderPluginName, Decider: decider}
	return h, err
}

func (p *PDProfile) threshold() epp.Decider {
	characters := pdThreshold
	if p.Threshold != nil {
		characters = *p.Threshold
	}
	if characters == 0 {
		return alwaysRemote{}
	}
	return threshold{NonCachedTokens: (characters + charactersPerToken - 1) / charactersPerToken}
}
