package dialect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// streaming is what a client asks for of the form of its answer.
type streaming struct{ stream, usage bool }

// streamAsked reads it. trtllm-serve adds the usage if there are stream_options, unless include_usage is false.
func streamAsked(r *request.Request) streaming {
	asks := streaming{stream: r.Stream()}
	if raw, ok := r.Value("stream_options"); ok && asks.stream {
		options := struct {
			Usage *bool `json:"include_usage"`
		}{}
		asks.usage = json.Unmarshal(raw, &options) == nil && (options.Usage == nil || *options.Usage)
	}
	return asks
}

// finishedAnswer is the hand-off of an engine that has ended a request with its first token: nothing is handed over.
type finishedAnswer []byte

// Answer implements Finisher.
func (a finishedAnswer) Answer() []byte { return a }

var errFinished = errors.New("the prefill engine has answered the request, and decode has nothing to do")

// Decode implements Handoff.
func (finishedAnswer) Decode() (request.Payload, error) { return request.Payload{}, errFinished }

// finished returns the client's answer: that of the context engine without its hand-off, or the events of a stream that says the same.
func (said *trtllmAnswer) finished(api pd.API, asks streaming) (Handoff, error) {
	if said.finish == "" {
		return nil, errors.New("the prefill answer does not say how it ended")
	}
	if trtllmEngine.Unfinished(trtllmEngine{}, said.whole) {
		return nil, errAborted
	}
	if !asks.stream {
		answer := bytes.Replace(said.whole, said.params, []byte("null"), 1)
		if said.ids != nil {
			answer = bytes.Replace(answer, said.ids, []byte("null"), 1)
		}
		return finishedAnswer(answer), nil
	}
	return said.events(api, asks.usage)
}

// trtllmWhole has the members of a whole answer that its stream has too.
type trtllmWhole struct {
	ID      json.RawMessage `json:"id"`
	Created json.RawMessage `json:"created"`
	Model   json.RawMessage `json:"model"`
	Choices []struct {
		Text       json.RawMessage `json:"text"`
		Message    json.RawMessage `json:"message"`
		Logprobs   json.RawMessage `json:"logprobs"`
		Finish     json.RawMessage `json:"finish_reason"`
		StopReason json.RawMessage `json:"stop_reason"`
	} `json:"choices"`
	Usage json.RawMessage `json:"usage"`
}

// trtllmChunk is one event of a stream.
type trtllmChunk struct {
	ID      json.RawMessage     `json:"id"`
	Object  string              `json:"object"`
	Created json.RawMessage     `json:"created"`
	Model   json.RawMessage     `json:"model"`
	Choices []trtllmChunkChoice `json:"choices"`
	Usage   json.RawMessage     `json:"usage,omitempty"`
}

type trtllmChunkChoice struct {
	Index      int             `json:"index"`
	Text       json.RawMessage `json:"text,omitempty"`
	Delta      json.RawMessage `json:"delta,omitempty"`
	Logprobs   json.RawMessage `json:"logprobs,omitempty"`
	Finish     json.RawMessage `json:"finish_reason"`
	StopReason json.RawMessage `json:"stop_reason,omitempty"`
}

// events returns a whole answer as a stream. A message of one token has no tool calls.
func (said *trtllmAnswer) events(api pd.API, usage bool) (Handoff, error) {
	var whole trtllmWhole
	if err := json.Unmarshal(said.whole, &whole); err != nil {
		return nil, fmt.Errorf("reading the prefill answer: %w", err)
	}
	from := whole.Choices[0] // readTRTLLM has counted them
	chunk := trtllmChunk{whole.ID, "text_completion", whole.Created, whole.Model,
		[]trtllmChunkChoice{{Text: from.Text, Logprobs: from.Logprobs, Finish: from.Finish, StopReason: from.StopReason}}, nil}
	if api == pd.APIChat {
		var message struct {
			Role      json.RawMessage `json:"role"`
			Content   json.RawMessage `json:"content,omitempty"`
			Reasoning json.RawMessage `json:"reasoning_content,omitempty"`
		}
		if err := json.Unmarshal(from.Message, &message); err != nil {
			return nil, fmt.Errorf("reading the message of the prefill answer: %w", err)
		}
		delta, err := json.Marshal(message)
		if err != nil {
			return nil, err
		}
		chunk.Object, chunk.Choices[0].Delta = "chat.completion.chunk", delta
	}
	var events bytes.Buffer
	chunks := []trtllmChunk{chunk}
	if usage {
		chunk.Choices, chunk.Usage = []trtllmChunkChoice{}, whole.Usage
		chunks = append(chunks, chunk)
	}
	for _, c := range chunks {
		text, err := json.Marshal(c)
		if err != nil {
			return nil, fmt.Errorf("making a stream of the prefill answer: %w", err)
		}
		fmt.Fprintf(&events, "data: %s\n\n", text)
	}
	events.WriteString("data: [DONE]\n\n")
	return finishedAnswer(events.Bytes()), nil
}

var _ Finisher = finishedAnswer(nil)
