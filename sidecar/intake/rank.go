package intake

import (
	"net/http"

	"github.com/tandem-serving/tandem/pd"
)

var keyRank = http.CanonicalHeaderKey(pd.HeaderRank)

// ReadRank returns the data-parallel rank that pd.HeaderRank names, 0 without the header. There are several ranks, with the data
// ports from first on. A header that names none of them is refused.
//
// Only the port counts, because a pod does not know for certain by which address the picker knows it. A client may have set
// the header, which does no harm: it can choose only among the ranks of this pod, and engines do not get it.
func ReadRank(h http.Header, first, ranks int) (int, *pd.Refusal) {
	values := h[keyRank]
	if len(values) == 0 {
		return 0, nil
	}
	named, err := pd.ParseTargets(values)
	if err != nil || len(named) != 1 || int(named[0].Port) < first || int(named[0].Port) >= first+ranks {
		return 0, pd.Refuse(pd.BadRequest, "%s must be HOST:PORT of one rank of this pod, with a port from %d to %d.", pd.HeaderRank, first, first+ranks-1)
	}
	return int(named[0].Port) - first, nil
}
