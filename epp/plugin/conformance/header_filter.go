package conformance

import "github.com/tandem-serving/tandem/epp"

// HeaderFilter keeps the endpoints that the request's header test-epp-endpoint-selection names: a list of ip and ip:port. An ip
// stands for all ports of a pod; llm-d keeps only one port of each pod, whether the list names others or not. A request without
// the header has no endpoint, as in llm-d. It has no parameters.
type HeaderFilter struct{}

// headerSelection names the endpoints that the tests want.
const headerSelection = "test-epp-endpoint-selection"

// NewHeaderFilter returns the parameters with their defaults.
func NewHeaderFilter() epp.Plugin { return &HeaderFilter{} }

// Problems implements epp.Plugin.
func (*HeaderFilter) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*HeaderFilter) Build(*epp.Builder) (any, error) { return headerFilter{}, nil }

type headerFilter struct{}

// Filter implements epp.Filter.
func (headerFilter) Filter(r *epp.Round, c []epp.Candidate) []epp.Candidate {
	value := r.Request.Header(headerSelection)
	if value == "" {
		return c[:0]
	}
	named := epp.NewSubset(epp.SplitList(value)...)
	n := 0
	for i := range c {
		if named.Has(c[i].Addr) {
			c[n] = c[i]
			n++
		}
	}
	return c[:n]
}
