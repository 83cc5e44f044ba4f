package extproc

import (
	"slices"
	"strings"
	"testing"

	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
)

const a, b, c6 = "10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8200"

// remotePool decodes on a and prefills on b.
func remotePool() *pool {
	p := newPool(a, b, c6)
	p.choose = func(*epp.Request) (*epp.Decision, error) { return p.remote(p.endpoints[0], p.endpoints[1]) }
	return p
}

// decide sends a complete chat call and returns the headers that the answer sets.
func (c *call) decide(fields ...string) map[string]string {
	c.t.Helper()
	c.send(chat(more, fields...), requestBody(ends, prompt))
	set := headersSet(c.t, c.recv())
	c.recv() // the body
	return set
}

func TestOneFilterAccounts(t *testing.T) {
	byAttribute := responseHeaders(more)
	byAttribute.Attributes = map[string]*structpb.Struct{attributesKey: {Fields: map[string]*structpb.Value{
		upstreamAddress: structpb.NewStringValue(c6)}}}
	for _, c := range []struct {
		name    string
		headers *procv3.ProcessingRequest
		want    string // in flight once the answer has begun
		served  string
	}{
		{"no served endpoint", responseHeaders(more), "1/0 0/0 0/0", ""},
		{"the first choice served", served(responseHeaders(more), a), "1/0 0/0 0/0", a},
		{"another served", served(responseHeaders(more), c6), "0/0 0/0 1/0", c6},
		{"another served, says an attribute", byAttribute, "0/0 0/0 1/0", c6},
		{"one served that is not known", served(responseHeaders(more), "10.9.9.9:1"), "1/0 0/0 0/0", "10.9.9.9:1"},
		{"served endpoint is not an address", served(responseHeaders(more), "garbage"), "1/0 0/0 0/0", ""},
		{"an IPv4 address in IPv6 served", served(responseHeaders(more), "[::ffff:10.0.0.2]:8000"), "0/0 1/0 0/0", b},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startRig(t, remotePool())
			s := r.open(t, "")
			s.decide()
			r.pool.mustLoad(t, "1/0 1/100 0/0")
			s.send(c.headers)
			s.recv()
			r.pool.mustLoad(t, c.want)
			s.mustFinish()
			all := r.outcomes(t)
			r.pool.mustLoad(t, "0/0 0/0 0/0")
			if len(all) != 1 || all[0].Served != c.served || all[0].Status != 200 || all[0].Immediate || all[0].Request != "r-1" ||
				all[0].API != pd.APIChat || all[0].Plan.Verdict != pd.Remote {
				t.Errorf("outcomes %+v", all)
			}
			r.mustMetric(t, 1, "tandem_requests_total", "component", "epp", "decision", "remote", "reason", "uncached", "code", "200")
			r.mustMetric(t, 1, "tandem_phase_seconds", "phase", "epp", "decision", "remote")
		})
	}
}

func TestPairAccounts(t *testing.T) {
	r := startRig(t, remotePool())
	picker := r.open(t, client.MarkPicker)
	plan := picker.decide()[pd.HeaderPlan]
	if _, err := picker.rest(); err != nil {
		t.Fatal(err) // it ends by itself
	}
	r.gone(t)
	r.pool.mustLoad(t, "1/0 1/100 0/0")
	if r.ledger.Len() != 1 {
		t.Errorf("%d reservations wait", r.ledger.Len())
	}

	acct := r.open(t, client.MarkAcct)
	acct.send(chat(more, pd.HeaderPlan, plan, epp.HeaderDestination, a, pd.HeaderPrefill, b))
	if m := mutationOf(acct.recv()); m != nil {
		t.Errorf("the accountant changes the request: %v", m)
	}
	r.pool.mustLoad(t, "1/0 1/100 0/0")
	if r.ledger.Len() != 0 {
		t.Errorf("%d reservations wait", r.ledger.Len())
	}
	acct.send(served(responseHeaders(more), c6))
	acct.recv()
	r.pool.mustLoad(t, "0/0 0/0 1/0")
	acct.mustFinish()
	all := r.outcomes(t)
	r.pool.mustLoad(t, "0/0 0/0 0/0")
	if len(all) != 1 || all[0].Plan.String() != plan || all[0].Served != c6 {
		t.Errorf("outcomes %+v", all)
	}
	r.mustMetric(t, 1, "tandem_requests_total")
}

func TestAccountantWithoutReservation(t *testing.T) {
	const plan = "remote;id=0123456789abcdef;reason=uncached;strict=0;epp=0.5;report"
	for _, c := range []struct {
		name    string
		headers []string
		want    string
	}{
		{"picked by another replica", []string{pd.HeaderPlan, plan, epp.HeaderDestination, a, pd.HeaderPrefill, b + "," + c6}, "1/0 1/0 0/0"},
		{"best of several", []string{pd.HeaderPlan, plan, epp.HeaderDestination, c6 + ", " + a}, "0/0 0/0 1/0"},
		{"prefill that is not known", []string{pd.HeaderPlan, plan, epp.HeaderDestination, a, pd.HeaderPrefill, "10.9.9.9:1"}, "1/0 0/0 0/0"},
		{"decode that is not known", []string{pd.HeaderPlan, plan, epp.HeaderDestination, "10.9.9.9:1", pd.HeaderPrefill, b}, "0/0 0/0 0/0"},
		{"no plan", []string{epp.HeaderDestination, b}, "0/0 1/0 0/0"},
		{"invalid plan", []string{pd.HeaderPlan, "x", epp.HeaderDestination, b}, "0/0 1/0 0/0"},
		{"no pick", nil, "0/0 0/0 0/0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startRig(t, remotePool())
			s := r.open(t, client.MarkAcct)
			s.send(chat(more, c.headers...))
			s.recv()
			r.pool.mustLoad(t, c.want)
			s.send(served(responseHeaders(more), b))
			s.recv()
			if c.want != "0/0 0/0 0/0" {
				r.pool.mustLoad(t, "0/0 1/0 0/0")
			}
			s.mustFinish()
			if all := r.outcomes(t); len(all) != 1 {
				t.Errorf("outcomes %+v", all)
			}
			r.pool.mustLoad(t, "0/0 0/0 0/0")
		})
	}
}

// A stage that no type of the server names is charged, and ends with the answer's beginning or with the request, as its row says.
func TestAccountantChargesEveryStage(t *testing.T) {
	const plan = "remote;id=0123456789abcdef;reason=uncached;strict=0;epp=0.5;report;stage-encode=always"
	encode := epp.StageRow{Stage: "encode", Role: pd.RoleEncode, Endpoints: 2, Header: "x-encoder-hosts-ports"}
	generating := encode
	generating.Generates = true
	for _, c := range []struct {
		name                 string
		encode               epp.StageRow
		header               string // that names the encoders
		picked, answered     string // in flight
		endsBeforeTheAnswers bool
	}{
		{"until the answer begins", encode, c6 + "," + a, "1/0 1/0 1/0", "1/0 0/0 0/0", false},
		{"until the request ends", generating, c6, "1/0 1/0 1/0", "1/0 0/0 1/0", false},
		{"on the endpoint of another stage", encode, b, "1/0 2/0 0/0", "1/0 0/0 0/0", false},
		{"not known", encode, "10.9.9.9:1", "1/0 1/0 0/0", "1/0 0/0 0/0", false},
		{"the client leaves before the answer", encode, c6, "1/0 1/0 1/0", "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := remotePool()
			p.stages = append(slices.Clone(usual), c.encode)
			r := startRig(t, p)
			s := r.open(t, client.MarkAcct)
			s.send(chat(more, pd.HeaderPlan, plan, epp.HeaderDestination, a, pd.HeaderPrefill, b, encode.Header, c.header))
			s.recv()
			r.pool.mustLoad(t, c.picked)
			if !c.endsBeforeTheAnswers {
				s.send(served(responseHeaders(more), a))
				s.recv()
				r.pool.mustLoad(t, c.answered)
			}
			s.mustFinish()
			all := r.outcomes(t)
			r.pool.mustLoad(t, "0/0 0/0 0/0")
			if len(all) != 1 || len(all[0].Plan.Stages) != 1 || all[0].Plan.Stages[0].Name != "encode" {
				t.Errorf("outcomes %+v", all)
			}
		})
	}
}

// A request without a plan has no id by which the accountant could take it over.
func TestPickerKeepsNothingWithoutAPlan(t *testing.T) {
	r := startRig(t, remotePool())
	s := r.open(t, client.MarkPicker)
	s.send(get("/v1/models"))
	if answers, err := s.rest(); len(answers) != 1 || err != nil {
		t.Errorf("got %q, %v", describe(answers), err)
	}
	r.gone(t)
	r.pool.mustLoad(t, "0/0 0/0 0/0")
	if all := r.outcomes(t); len(all) != 0 {
		t.Errorf("outcomes %+v: the accountant reports them", all)
	}
}

func TestLedgerIsEndedWithoutAccountant(t *testing.T) {
	r := startRig(t, remotePool())
	s := r.open(t, client.MarkPicker)
	s.decide()
	r.ledger.Close() // as its patience would do
	r.pool.mustLoad(t, "0/0 0/0 0/0")
}

func TestAnswerHasThePlan(t *testing.T) {
	const happened, timing = "local;reason=prefill-failed;attempts=2;candidate=1", "epp;dur=0.1, recv;dur=1"
	for _, c := range []struct {
		name    string
		headers []string
		want    []string // headers that are added
	}{
		{"foreign sidecar", nil, []string{pd.HeaderTiming, pd.HeaderDecision}},
		{"our sidecar", []string{pd.HeaderDecision, happened, pd.HeaderTiming, timing}, nil},
		{"foreign sidecar, engine with timing", []string{pd.HeaderTiming, "db;dur=3"}, []string{pd.HeaderDecision}},
	} {
		for _, mark := range []client.Mark{"", client.MarkAcct} {
			t.Run(c.name+string(mark), func(t *testing.T) {
				r := startRig(t, remotePool())
				s := r.open(t, mark)
				if mark == client.MarkAcct {
					s.send(chat(ends, pd.HeaderPlan, "remote;id=0123456789abcdef;reason=uncached;strict=0;epp=0.5"))
					s.recv()
				} else {
					s.decide()
				}
				s.send(responseHeaders(more, c.headers...))
				set := headersSet(t, s.recv())
				for name, value := range set {
					if !slices.Contains(c.want, name) {
						t.Errorf("%s: %s is added", name, value)
					}
				}
				if len(set) != len(c.want) {
					t.Errorf("added %v, want %v", set, c.want)
				}
				if said, ok := set[pd.HeaderDecision]; ok && said != "remote;reason=uncached" {
					t.Errorf("decision %s", said)
				}
				if said, ok := set[pd.HeaderTiming]; ok && !strings.HasPrefix(said, "epp;dur=") {
					t.Errorf("timing %s", said)
				}
			})
		}
	}
	t.Run("nothing is generated", func(t *testing.T) {
		r := startRig(t, remotePool())
		s := r.open(t, "")
		s.send(get("/v1/models"), responseHeaders(more))
		s.recv()
		if m := mutationOf(s.recv()); m != nil {
			t.Errorf("added %v", m)
		}
	})
}
