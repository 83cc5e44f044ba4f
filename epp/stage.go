package epp

import "github.com/tandem-serving/tandem/pd"

// Stage names what an endpoint is picked for. A request is served in the stages that a Handler lists, so another stage is
// another row of that list and no other type.
type Stage string

// The stages that Tandem's sidecar serves.
const (
	StageDecode  Stage = "decode"
	StagePrefill Stage = "prefill"
)

// Stages are the stages of a request in the order in which they are picked for. The first one always runs, and the request
// is sent to its endpoint. Each of the others does a part of the work elsewhere, if that is wanted.
type Stages []StageRow

// StageRow is one stage: which profile picks its endpoints, when it runs, and how it is charged.
type StageRow struct {
	Stage   Stage
	Profile string // name of the profile that picks its endpoints
	// Role is that of endpoints that are meant for the stage. Filters enforce it; refusals, explanations and the shedding of
	// load go by it.
	Role pd.Role
	// Endpoints is how many endpoints are picked, best first; the next one is tried if the one before fails. In the first row
	// 0 means: as many as the profile's picker is configured to choose.
	Endpoints int
	// Excludes lists stages whose first choice is no candidate of this one: it would hand over to itself what it has.
	Excludes []Stage
	// Decider says whether the stage runs. Without one, a stage that splits requests runs only if the client forces it, and
	// any other always runs. The first row has none.
	Decider NamedDecider
	// Split marks the stage that takes the prompt away from the first one. The client's P/D mode, and whether the request can
	// be split at all, count before its decider does. At most one row has it.
	Split bool
	// OnNone says what becomes of a request that wants the stage while it has no endpoint. The first row always refuses.
	OnNone OnNone
	// Header is the request header that tells the sidecar which endpoints were picked. The first row has none.
	Header string
	// Computes says that an endpoint of this stage computes the prompt, unless a later stage does: the last one that runs is
	// charged the tokens that it has not cached, and the Matcher learns all of them.
	Computes bool
	// Generates says that an endpoint of this stage generates the answer: it is charged until the request ends. The others
	// are charged until the answer begins.
	Generates bool
}

// DecodeRow is the row of the decode stage, which comes first.
func DecodeRow(profile string) StageRow {
	return StageRow{Stage: StageDecode, Profile: profile, Role: pd.RoleDecode, Computes: true, Generates: true}
}

// PrefillRow is the row of the prefill stage with at most n endpoints for each request.
func PrefillRow(profile string, n int) StageRow {
	return StageRow{Stage: StagePrefill, Profile: profile, Role: pd.RolePrefill, Endpoints: n, Excludes: []Stage{StageDecode},
		Split: true, Header: pd.HeaderPrefill, Computes: true}
}

// Row returns the row of a stage, nil if there is none.
func (s Stages) Row(stage Stage) *StageRow {
	for i := range s {
		if s[i].Stage == stage {
			return &s[i]
		}
	}
	return nil
}

// OnNone says what becomes of a request that wants a stage which has no endpoint for it.
type OnNone uint8

const (
	// NoneSkips leaves the stage out: an endpoint that was picked before does its work. Such requests are counted.
	NoneSkips OnNone = iota
	// NoneSkipsWithinBudget leaves it out within the fallback budget, and refuses the other requests.
	NoneSkipsWithinBudget
	// NoneRefuses refuses all of them.
	NoneRefuses
)

// Handler says which profiles run, and in what order.
type Handler interface {
	// Stages is asked once, with the names of all profiles there are. The error tells which one is missing, or too many.
	Stages(profiles []string) (Stages, error)
}
