package flow

import (
	"cmp"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// longestTarget is the longest time to first token that a client may ask for.
const longestTarget = 24 * time.Hour

// ttftOf returns the time in which the client wants the first token, 0 if it did not say, or not with a positive number.
func ttftOf(r *epp.Request) time.Duration {
	ms, err := strconv.ParseFloat(cmp.Or(r.Header(epp.HeaderTTFT), r.Header(epp.HeaderTTFTOld)), 64)
	if err != nil || !(ms > 0 && ms <= float64(longestTarget/time.Millisecond)) {
		return 0
	}
	return time.Duration(ms * float64(time.Millisecond))
}

// loadOf returns what the pick will charge at most.
func loadOf(r *epp.Request) epp.InFlight { return epp.InFlight{Requests: 1, Tokens: r.Prompt.Tokens} }
