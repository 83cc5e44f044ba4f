package extproc

import (
	"net/netip"

	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-serving/tandem/epp"
)

// Where Envoy puts attributes, and the one that says who served when the load balancer does not.
const (
	attributesKey   = "envoy.filters.http.ext_proc"
	upstreamAddress = "upstream.address"
)

// subsetOf reads the subset hint of a frame, nil if it has none. A hint that is there but empty allows nothing.
func subsetOf(f *procv3.ProcessingRequest) *epp.Subset {
	hint, ok := f.GetMetadataContext().GetFilterMetadata()[epp.NamespaceSubset].GetFields()[epp.HeaderSubset]
	if !ok {
		return nil
	}
	var texts []string
	if list := hint.GetListValue(); list != nil {
		for _, v := range list.GetValues() {
			texts = append(texts, v.GetStringValue())
		}
	} else {
		texts = append(texts, hint.GetStringValue())
	}
	return epp.NewSubset(epp.SplitList(texts...)...)
}

// servedBy reads who served the request from the frame of the answer's headers, "" if it does not say.
func servedBy(f *procv3.ProcessingRequest) string {
	if by := text(f.GetMetadataContext().GetFilterMetadata()[epp.NamespaceLB], epp.HeaderServed); by != "" {
		return by
	}
	return text(f.GetAttributes()[attributesKey], upstreamAddress)
}

func text(s *structpb.Struct, key string) string { return s.GetFields()[key].GetStringValue() }

// find gives the endpoint at an ip:port, nil if there is none, and the ip:port as endpoints have it, "" if it is none.
func (s *Server) find(address string) (e *epp.Endpoint, canonical string) {
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, ""
	}
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	e, _ = s.deps.Endpoints.Find(addr)
	return e, addr.String()
}
