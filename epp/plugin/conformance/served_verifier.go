package conformance

import (
	"cmp"

	"github.com/tandem-serving/tandem/epp"
)

// ServedVerifier adds the header x-conformance-test-served-endpoint to answers: the address that the gateway reports as the one
// that served, in the metadata x-gateway-destination-endpoint-served of envoy.lb. If the gateway reports none, the value begins
// with fail. It has no parameters.
type ServedVerifier struct{}

const (
	headerResult = "x-conformance-test-served-endpoint"
	notReported  = "fail: missing destination endpoint served metadata"
)

// NewServedVerifier returns the parameters with their defaults.
func NewServedVerifier() epp.Plugin { return &ServedVerifier{} }

// Problems implements epp.Plugin.
func (*ServedVerifier) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*ServedVerifier) Build(*epp.Builder) (any, error) { return servedVerifier{}, nil }

type servedVerifier struct{}

// Stamp implements epp.Stamper. The value is the gateway's own text: what the picker knows would hide a gateway that reports
// nothing.
func (servedVerifier) Stamp(a *epp.Answer, set func(name, value string)) {
	set(headerResult, cmp.Or(a.Reported, notReported))
}
