package epp

import "github.com/tandem-serving/tandem/pd"

// Stage names what an endpoint is picked for. A Handler lists the stages in which a request is served, so a further stage is
// a further row of that list.
type Stage string

// The stages that Tandem's sidecar serves. StageEncode encodes the images, audio and video of a request.
const (
	StageDecode  Stage = "decode"
	StagePrefill Stage = "prefill"
	StageEncode  Stage = "encode"
)

// Stages are the stages of a request in the order in which they are picked for. The first one always runs, and the request is
// sent to its endpoint. Each of the others does a part of the work on another endpoint, if it runs.
type Stages []StageRow

// StageRow is one stage: which profile picks its endpoints, when it runs, and how it is charged.
type StageRow struct {
	Stage   Stage
	Profile string // name of the profile that picks its endpoints
	// Role is the role of endpoints for the stage. Filters enforce it; refusals, explanations and the shedding of load use
	// it.
	Role pd.Role
	// Endpoints is how many endpoints are picked, best first; if one fails the next one is tried. 0 means as many as the
	// profile's picker is configured to choose; not in the row that splits requests.
	Endpoints int
	// Excludes lists stages whose first choice is no candidate of this one: an endpoint would hand its KV cache to itself.
	Excludes []Stage
	// Decider says whether the stage runs. Without one, a stage that splits requests runs only if the client forces it, and
	// any other always runs. The first row has none.
	Decider NamedDecider
	// Split marks the stage that computes the prompt for the first one. The client's P/D mode comes before its decider, as
	// does whether the request can be split. At most one row has it.
	Split bool
	// OnNone says what happens to a request that needs the stage while it has no endpoint. The first row always refuses.
	OnNone OnNone
	// FallbackRatio and FallbackBurst are, in the row that splits requests, the pd.FallbackBudget of those that should be split while no
	// endpoint of the stage is available: the share that each request adds, 0 to 1, and how many there may be at once.
	FallbackRatio float64
	FallbackBurst int
	// Port is, in the first row, the port of the sidecar that sends requests on to the picked endpoint, which pd.HeaderRank names:
	// the gateway is told this port in place of the endpoint's own. 0 = the endpoint's own.
	Port uint16
	// Header is the request header that names the picked endpoints to the sidecar. The first row has none.
	Header string
	// Computes says that an endpoint of this stage computes the prompt, unless a later stage does. The last such stage that
	// runs is charged the uncached tokens, and the Matcher learns the prompt for its endpoint.
	Computes bool
	// Generates says that an endpoint of this stage generates the answer, so it is charged until the request ends. The others
	// are charged until the answer begins.
	Generates bool
}

// DecodeRow returns the row of the decode stage, which comes first.
func DecodeRow(profile string) StageRow {
	return StageRow{Stage: StageDecode, Profile: profile, Role: pd.RoleDecode, Computes: true, Generates: true}
}

// PrefillRow returns the row of the prefill stage with at most n endpoints for each request.
func PrefillRow(profile string, n int) StageRow {
	return StageRow{Stage: StagePrefill, Profile: profile, Role: pd.RolePrefill, Endpoints: n, Excludes: []Stage{StageDecode},
		Split: true, Header: pd.HeaderPrefill, Computes: true, FallbackRatio: pd.FallbackRatio, FallbackBurst: pd.FallbackBurst}
}

// EncodeRow returns the row of the encode stage. All endpoints that the profile picks share the items of a request.
func EncodeRow(profile string, decider NamedDecider) StageRow {
	return StageRow{Stage: StageEncode, Profile: profile, Role: pd.RoleEncode, Decider: decider, Header: pd.HeaderEncode}
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

// Splitting returns the row of the stage that splits requests, nil if there is none.
func (s Stages) Splitting() *StageRow {
	for i := range s {
		if s[i].Split {
			return &s[i]
		}
	}
	return nil
}

// OnNone says what happens to a request that needs a stage without an endpoint.
type OnNone uint8

const (
	// NoneSkips skips the stage: an endpoint that was picked before does its work. Such requests are counted.
	NoneSkips OnNone = iota
	// NoneSkipsWithinBudget skips it within the fallback budget, and refuses the other requests.
	NoneSkipsWithinBudget
	// NoneRefuses refuses all of them.
	NoneRefuses
)

// Handler says which profiles run, and in what order.
type Handler interface {
	// Stages is called once, with the names of all profiles. The error says which one is missing, or too many.
	Stages(profiles []string) (Stages, error)
}

// Chooser is a Handler that has several lists of stages, one of which serves a request. What Stages returns then describes the
// usual requests. It must be safe for concurrent use.
type Chooser interface {
	Handler
	// Choices is called once, with the names of all profiles, and returns the stages by name.
	Choices(profiles []string) map[string]Stages
	// Choose returns the name of the stages that a request asks for. It is not asked if there is only one choice. Requests that
	// ask for a name which is none of Choices are refused.
	Choose(r *Request) string
}
