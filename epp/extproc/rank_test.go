package extproc

import (
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
)

// Two ranks of a pod, the first of which has the sidecar's port, and a rank of another pod.
const rank0, rank1, elsewhere = "10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8001"

// ranks is a pool that sends everything to rank1, by way of the sidecar at port 8000, and has elsewhere as its next choice.
func ranks() *pool {
	p := newPool(rank0, rank1, elsewhere)
	row := epp.DecodeRow("decode")
	row.Port = 8000
	p.stages = epp.Stages{row}
	p.choose = func(r *epp.Request) (*epp.Decision, error) {
		d, err := p.local(r, p.endpoints[1:]...)
		d.Picks[0].Row = &p.stages[0]
		return d, err
	}
	return p
}

// TestRank: the gateway is told the port of the sidecar, and the sidecar the rank, which alone is charged.
func TestRank(t *testing.T) {
	r := startRig(t, ranks())
	s := r.open(t, "")
	s.send(chat(more, pd.HeaderRank, "6.6.6.6:6"), requestBody(ends, prompt))
	answer := s.recv()
	set := headersSet(t, answer)
	if set[epp.HeaderDestination] != rank0 || set[pd.HeaderRank] != rank1 {
		t.Errorf("set %v, want the destination %s and the rank %s", set, rank0, rank1)
	}
	s.recv() // the body
	r.pool.mustLoad(t, "0/0 1/100 0/0")
	s.send(served(responseHeaders(more), rank0))
	s.recv()
	r.pool.mustLoad(t, "0/0 1/0 0/0")
	s.mustFinish()
	r.outcomes(t)
	r.pool.mustLoad(t, "0/0 0/0 0/0")
}

// TestRankIsChargedAgain: an accountant that knows nothing of the pick charges the rank.
func TestRankIsChargedAgain(t *testing.T) {
	r := startRig(t, ranks())
	s := r.open(t, client.MarkAcct)
	s.send(chat(more, pd.HeaderPlan, "local;id=0123456789abcdef;reason=not-splittable;strict=0;epp=0.5", epp.HeaderDestination, rank0, pd.HeaderRank, rank1))
	s.recv()
	r.pool.mustLoad(t, "0/0 1/0 0/0")
	s.mustFinish()
	if all := r.outcomes(t); len(all) != 1 || all[0].Request != "r-1" {
		t.Errorf("outcomes %+v", all)
	}
}
