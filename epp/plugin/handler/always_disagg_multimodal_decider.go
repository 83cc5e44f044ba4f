package handler

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// AlwaysDisaggMultimodalDecider chooses an endpoint of its own for the stage if the prompt has an image, audio or video. It is for
// deciders.encode of disagg-profile-handler; in deciders.prefill it has such prompts computed on a prefill pod. It has no
// parameters.
type AlwaysDisaggMultimodalDecider struct{}

// NewAlwaysDisaggMultimodalDecider returns the parameters with their defaults.
func NewAlwaysDisaggMultimodalDecider() epp.Plugin { return &AlwaysDisaggMultimodalDecider{} }

// Problems implements epp.Plugin.
func (*AlwaysDisaggMultimodalDecider) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*AlwaysDisaggMultimodalDecider) Build(*epp.Builder) (any, error) { return multimodal{}, nil }

// multimodal is the epp.Decider that looks only for images, audio and video.
type multimodal struct{}

// Decide implements epp.Decider.
func (multimodal) Decide(a *epp.Alternatives) epp.Ruling {
	if len(a.Request.Prompt.Media) > 0 {
		return epp.Ruling{Verdict: pd.Remote, Reason: pd.Always}
	}
	return epp.Ruling{Verdict: pd.Local, Reason: pd.NoMedia}
}
