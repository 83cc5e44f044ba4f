package dialect

import (
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// This file has the prefill engines of vLLM's NixlConnector read back (bidirectional_kv_xfer in their kv_connector_extra_config), as
// measured on vLLM 0.32.0.
//
// vLLM's own form is another one: with bidirectional_kv_xfer, a decode engine keeps the blocks of each request for up to eight minutes
// (decoder_kv_blocks_ttl), and names them in its answer for the next turn. An answer that is a stream does not name them, so that
// nothing could read or free them, and prefill does not check that the next prompt begins with the same tokens. So here the decode
// engine is asked when the next turn has come, as if it were the prefill engine of the prompt's beginning: it finds the blocks in its
// prefix cache by the tokens of this prompt, and keeps nothing between turns.

// The members with which vLLM cuts a prompt, after it has made tokens of it.
const (
	truncateTokens = "truncate_prompt_tokens"
	truncateSide   = "truncation_side"
)

var keepFirst = []byte(`"right"`)

// Controls implements Controller.
func (d *vllmNIXL) Controls() []string {
	if !d.readBack {
		return nil
	}
	return []string{truncateTokens, truncateSide}
}

// ReadsBack implements BackReader.
func (d *vllmNIXL) ReadsBack() bool { return d.readBack }

// Lend implements BackAttempt. The other APIs have no members that cut a prompt, and of a client's own cut another part is left.
func (a *nixlAttempt) Lend(tokens int) (leg request.Payload, ok bool, err error) {
	r := a.request
	if r.API != pd.APICompletions && r.API != pd.APIChat || r.Has(truncateTokens) || r.Has(truncateSide) {
		return leg, false, nil
	}
	e, err := r.Edit()
	if err != nil {
		return leg, false, err
	}
	OneToken(r, e)
	e.Set(truncateTokens, strconv.AppendInt(nil, int64(tokens), 10))
	e.Set(truncateSide, keepFirst)
	e.Set("kv_transfer_params", prefillParams)
	leg, err = e.Payload()
	return leg, err == nil, err
}

// Borrow implements BackAttempt.
func (a *nixlAttempt) Borrow(answer []byte, expires time.Duration) (Handoff, error) {
	lent := &nixlAttempt{nixlLegs{dialect: a.dialect, request: a.request}}
	if err := lent.read(answer); err != nil {
		return nil, err
	}
	if lent.params.pushed {
		return nil, errPushes
	}
	a.borrowed, a.expires = &lent.params, expires
	return lent, nil
}

// readingParams returns the parameters of a prefill leg that reads what was borrowed: the decode engine's own, which say what to read,
// with the flags of a prefill leg. Of two members of a name the last one counts. vLLM does not read from five seconds before the expiry
// on, and fails the request, or computes all if its kv_load_failure_policy says so.
func (a *nixlLegs) readingParams() []byte {
	const flags = `,"do_remote_prefill":false,"do_remote_decode":true,"remote_blocks_expiry_time":`
	borrowed := a.borrowed.raw
	params := make([]byte, 0, len(borrowed)+len(flags)+24)
	params = append(append(params, borrowed[:len(borrowed)-1]...), flags...)
	return append(strconv.AppendFloat(params, a.expires.Seconds(), 'f', 3, 64), '}')
}

// recomputed is below how many tokens a prefill engine computes what it could read (kv_recompute_threshold, 64 by default), with those
// that it lacks of a block.
const recomputed = 64 + 64

// ReadBack implements Borrowed: a prefill engine counts what it has read as cached.
func (a *nixlAttempt) ReadBack() (used, known bool) {
	if a.borrowed == nil || a.borrowed.tokens < 0 || a.params.cached < 0 {
		return false, false
	}
	return a.params.cached > a.borrowed.tokens-recomputed, true
}

var (
	_ Controller  = (*vllmNIXL)(nil)
	_ BackReader  = (*vllmNIXL)(nil)
	_ BackAttempt = (*nixlAttempt)(nil)
	_ Borrowed    = (*nixlAttempt)(nil)
)
