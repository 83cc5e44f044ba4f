package sidecar

import (
	"net/http"

	"github.com/tandem-serving/tandem/pd"
)

// Tandem's headers as net/http spells them: of a name in lower case its functions make a new string at each use.
var (
	keyDecision = http.CanonicalHeaderKey(pd.HeaderDecision)
	keyTiming   = http.CanonicalHeaderKey(pd.HeaderTiming)
	keyOutcome  = http.CanonicalHeaderKey(pd.HeaderOutcome)
)
