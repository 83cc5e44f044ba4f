package dialect

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
)

// SideChannel is a vLLM engine's answer on the NIXL connector's side channel: how the agent of one of its ranks is reached.
type SideChannel struct {
	// EngineID is the engine's id until it restarts, the same as in its hand-offs (remote_engine_id).
	EngineID string
	// Agent is the metadata of the rank's NIXL agent, for transfer.Notifier's Load. Tandem does not parse it.
	Agent []byte
}

// nixlAgents implements Agents.
type nixlAgents struct{}

// Question implements Agents. Asked for a rank that it does not have, vLLM 0.32 stops answering until it is restarted.
func (nixlAgents) Question(pipeline, tensor int) (question []byte, limit int) {
	return AskSideChannel(pipeline, tensor), MaxSideChannel
}

// Answer implements Agents.
func (nixlAgents) Answer(parts [][]byte) (engineID string, agent []byte, err error) {
	told, err := ParseSideChannel(parts)
	return told.EngineID, told.Agent, err
}

// MaxSideChannel bounds an answer of the side channel, in bytes. vLLM 0.32 sends 1 kB for two layers, and about 100 bytes for
// each further layer of the model.
const MaxSideChannel = 1 << 20

// questionWord is the length of the question before the ranks, in bytes: a list's head, and a word of 12 bytes.
const questionWord = 1 + 2 + 12

// AskSideChannel returns the question about one rank: a list of a word, the rank in pipeline parallelism, and the rank in
// tensor parallelism. A rank fits into one byte.
func AskSideChannel(pipeline, tensor int) []byte {
	question := append([]byte{0x93, 0xc4, 12}, "get_meta_msg"...)
	for _, rank := range []int{pipeline, tensor} {
		rank = min(max(rank, 0), math.MaxUint8)
		if rank > 0x7f {
			question = append(question, 0xcc)
		}
		question = append(question, byte(rank))
	}
	return question
}

// ParseSideChannel reads the parts of an answer: the first holds the engine's data, packed twice; a clock follows. The error
// says what is missing, because engines of other versions may answer otherwise.
func ParseSideChannel(parts [][]byte) (SideChannel, error) {
	if len(parts) == 0 {
		return SideChannel{}, fmt.Errorf("reading the side channel's answer: it is empty")
	}
	outer, err := (&unpacker{rest: parts[0]}).mapOf()
	if err != nil {
		return SideChannel{}, fmt.Errorf("reading the side channel's answer: %w", err)
	}
	packed, ok := outer["agent_metadata_bytes"]
	if !ok {
		return SideChannel{}, fmt.Errorf("reading the side channel's answer: it has no agent_metadata_bytes")
	}
	inner, err := (&unpacker{rest: packed}).mapOf()
	if err != nil {
		return SideChannel{}, fmt.Errorf("reading the side channel's agent_metadata_bytes: %w", err)
	}
	s := SideChannel{EngineID: string(inner["engine_id"]), Agent: inner["agent_metadata"]}
	for name, missing := range map[string]bool{"engine_id": s.EngineID == "", "agent_metadata": len(s.Agent) == 0} {
		if missing {
			return SideChannel{}, fmt.Errorf("reading the side channel's agent_metadata_bytes: it has no %s", name)
		}
	}
	return s, nil
}

// Pack returns the parts of an answer, for simulated engines. compatibility is the hash by which the two engines of a
// transfer check that their KV caches match, clock is the engine's time in seconds since 1970.
func (s SideChannel) Pack(compatibility string, clock float64) [][]byte {
	inner := []byte{0x82} // a map of two entries
	for _, text := range []string{"engine_id", s.EngineID, "agent_metadata"} {
		inner = appendPacked(inner, packedString, text)
	}
	inner = appendPacked(inner, packedBytes, string(s.Agent))
	outer := []byte{0x82}
	for _, text := range []string{"compatibility_hash", compatibility, "agent_metadata_bytes"} {
		outer = appendPacked(outer, packedString, text)
	}
	outer = appendPacked(outer, packedBytes, string(inner))
	return [][]byte{outer, binary.BigEndian.AppendUint64([]byte{0xcb}, math.Float64bits(clock))}
}

// ReadQuestion returns the ranks of a question of AskSideChannel. ok is false if it is another message.
func ReadQuestion(question []byte) (pipeline, tensor int, ok bool) {
	rest, ok := bytes.CutPrefix(question, AskSideChannel(0, 0)[:questionWord])
	if !ok {
		return 0, 0, false
	}
	ranks := make([]int, 0, 2)
	for len(rest) > 0 && len(ranks) < 2 {
		if rest[0] == 0xcc && len(rest) > 1 {
			rest = rest[1:]
		} else if rest[0] > 0x7f {
			return 0, 0, false
		}
		ranks, rest = append(ranks, int(rest[0])), rest[1:]
	}
	if len(ranks) < 2 || len(rest) > 0 {
		return 0, 0, false
	}
	return ranks[0], ranks[1], true
}
