package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/epp/tokens/jinja"
)

// messages returns a request's messages as vLLM hands them to the template.
func (t *variant) messages(r *jinja.Dict) ([]jinja.Value, error) {
	given, ok := get[*jinja.List](r, "messages")
	if !ok || len(given.Items) == 0 {
		return nil, errors.New("messages must be a list that is not empty")
	}
	out := make([]jinja.Value, 0, len(given.Items))
	developer := false
	for i, v := range given.Items {
		m, ok := v.(*message)
		if !ok {
			return nil, fmt.Errorf("messages[%d] must be an object", i)
		}
		prepared, err := t.prepared(m)
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		role, _ := get[string](m.read, "role")
		developer = developer || role == "developer"
		out = append(out, prepared)
	}
	if developer && !t.developer {
		return asSystem(out), nil
	}
	return out, nil
}

// prepared returns a message as the template gets it. It must not be changed: other requests may have the same message.
func (t *variant) prepared(m *message) (*jinja.Dict, error) {
	if d := m.prepared[t.number].Load(); d != nil {
		return d, nil
	}
	d, err := t.message(m.read)
	if err == nil {
		m.remember(t.number, d)
	}
	return d, err
}

func (t *variant) message(m *jinja.Dict) (*jinja.Dict, error) {
	role, ok := get[string](m, "role")
	if !ok {
		return nil, errors.New("role must be a string")
	}
	texts, err := textsOf(m)
	if err != nil {
		return nil, err
	}
	if role == "system" {
		texts = withoutHeader(texts)
	}
	out := &jinja.Dict{}
	out.Set("role", role)
	out.Set("content", t.content(role, texts))
	switch role {
	case "assistant":
		if err := assistant(out, m); err != nil {
			return nil, err
		}
	case "tool":
		if id, ok := m.Get("tool_call_id"); ok {
			out.Set("tool_call_id", id)
		}
	}
	for _, name := range []string{"name", "task"} {
		if s, ok := get[string](m, name); ok {
			out.Set(name, s)
		}
	}
	if role == "developer" {
		tools, _ := m.Get("tools")
		if tools != nil {
			return nil, errors.New("tools of a message are not supported")
		}
		out.Set("tools", nil)
	}
	return out, nil
}

// content returns texts as the template expects them: joined, or as a list of parts.
func (t *variant) content(role string, texts []part) jinja.Value {
	if t.LoopsOverContent() && role != "tool" {
		parts := make([]jinja.Value, len(texts))
		for i, p := range texts {
			d := &jinja.Dict{}
			d.Set("type", "text")
			d.Set("text", p.text)
			for _, name := range p.other {
				v, _ := p.of.Get(name)
				d.Set(name, v)
			}
			parts[i] = d
		}
		return jinja.NewList(parts...)
	}
	if len(texts) == 1 {
		return texts[0].text
	}
	var some []string
	for _, p := range texts {
		if p.text != "" || t.LoopsOverContent() {
			some = append(some, p.text)
		}
	}
	return strings.Join(some, "\n")
}

// part is a text of a message's content, and the members of its part that engines do not know, which templates may.
type part struct {
	text  string
	other []string
	of    *jinja.Dict
}

// textMembers are the members with the text of parts of a message, by the type of the part.
var textMembers = map[string]string{"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}

// partMembers are the members of parts that vLLM knows.
var partMembers = strings.Fields(`type text refusal thinking closed uuid image_url image_pil image_embeds audio_url audio_embeds input_audio video_url
	video_embeds prompt_embeds data file name detail url`)

// textsOf returns the texts of a message's content. Parts that are no text are an error.
func textsOf(m *jinja.Dict) ([]part, error) {
	v, _ := m.Get("content")
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		return []part{{text: v}}, nil
	case *jinja.List:
		var out []part
		for i, v := range v.Items {
			if text, ok := v.(string); ok {
				out = append(out, part{text: text})
				continue
			}
			d, _ := v.(*jinja.Dict)
			kind, _ := get[string](d, "type")
			member, ok := textMembers[kind]
			if !ok {
				return nil, fmt.Errorf("content[%d] is no text", i)
			}
			if _, ok := d.Get("uuid"); ok {
				return nil, fmt.Errorf("content[%d] has a uuid, which is not supported", i)
			}
			v, given := d.Get(member)
			if v == nil && given {
				continue
			}
			text, ok := v.(string)
			if !ok {
				return nil, fmt.Errorf("content[%d].%s must be a string", i, member)
			}
			one := part{text: text, of: d}
			for _, name := range d.Keys() {
				if !slices.Contains(partMembers, name) {
					one.other = append(one.other, name)
				}
			}
			out = append(out, one)
		}
		return out, nil
	}
	return nil, errors.New("content must be a string or a list")
}

// billingHeader begins a line of Claude Code's system prompts that differs for each request. vLLM drops it.
const billingHeader = "x-anthropic-billing-header"

func withoutHeader(texts []part) []part {
	var out []part
	for _, p := range texts {
		if strings.HasPrefix(p.text, billingHeader) {
			if _, p.text, _ = strings.Cut(p.text, "\n"); p.text == "" {
				continue
			}
		}
		out = append(out, p)
	}
	return out
}

// assistant adds what only the model's own messages have.
func assistant(out, m *jinja.Dict) error {
	if calls, ok := m.Get("tool_calls"); ok && calls != nil {
		list, ok := calls.(*jinja.List)
		if !ok {
			return errors.New("tool_calls must be a list")
		}
		var items []jinja.Value
		for i, v := range list.Items {
			call, err := toolCall(v)
			if err != nil {
				return fmt.Errorf("tool_calls[%d]: %w", i, err)
			}
			items = append(items, call)
		}
		if len(items) > 0 {
			out.Set("tool_calls", jinja.NewList(items...))
		}
	}
	v, _ := m.Get("reasoning")
	if v == nil {
		v, _ = m.Get("reasoning_content")
	}
	if v == nil {
		return nil
	}
	reasoning, ok := v.(string)
	if !ok {
		return errors.New("reasoning must be a string")
	}
	out.Set("reasoning", reasoning)
	out.Set("reasoning_content", reasoning)
	return nil
}

// toolCall returns a call as vLLM hands it to the template: with the members of OpenAI's types first, in their order, and its
// arguments as an object.
func toolCall(v jinja.Value) (jinja.Value, error) {
	given, _ := v.(*jinja.Dict)
	f, ok := get[*jinja.Dict](given, "function")
	if !ok {
		return nil, errors.New("there is no function")
	}
	if kind, ok := given.Get("type"); !ok || kind != "function" {
		return nil, errors.New("type must be function")
	}
	id, ok := get[string](given, "id")
	name, ok2 := get[string](f, "name")
	text, ok3 := get[string](f, "arguments")
	if !ok || !ok2 || !ok3 {
		return nil, errors.New("id, function.name and function.arguments must be strings")
	}
	arguments := &jinja.Dict{}
	if text != "" {
		v, err := jinja.Decode([]byte(text))
		if d, ok := v.(*jinja.Dict); ok {
			arguments = d
		} else if err != nil && json.Valid([]byte(text)) {
			return nil, err // it is an object to the engine
		}
	}
	function := &jinja.Dict{}
	function.Set("arguments", arguments)
	function.Set("name", name)
	others(function, f)
	out := &jinja.Dict{}
	out.Set("id", id)
	out.Set("function", function)
	out.Set("type", "function")
	others(out, given)
	return out, nil
}

// others adds the members of a dictionary that another does not have.
func others(to, from *jinja.Dict) {
	for _, name := range from.Keys() {
		if _, ok := to.Get(name); !ok {
			v, _ := from.Get(name)
			to.Set(name, v)
		}
	}
}

// asSystem makes system messages of developers' ones, for templates that do not know them, and one of all system messages.
func asSystem(messages []jinja.Value) []jinja.Value {
	var system []string
	var others []jinja.Value
	moved := false
	for i, v := range messages {
		m := v.(*jinja.Dict)
		role, _ := get[string](m, "role")
		if role != "developer" && role != "system" {
			others = append(others, m)
			continue
		}
		moved = moved || i > 0
		if text := joined(m); text != "" {
			system = append(system, text)
		}
		if role == "developer" {
			m = m.Copy()
			m.Set("role", "system")
			m.Delete("tools")
			messages[i] = m
		}
	}
	if !moved {
		return messages
	}
	first := &jinja.Dict{}
	first.Set("role", "system")
	first.Set("content", strings.Join(system, "\n\n"))
	return append([]jinja.Value{first}, others...)
}

// joined returns the text of a message that is prepared.
func joined(m *jinja.Dict) string {
	v, _ := m.Get("content")
	if text, ok := v.(string); ok {
		return text
	}
	var texts []string
	if parts, ok := v.(*jinja.List); ok {
		for _, part := range parts.Items {
			text, _ := get[string](part.(*jinja.Dict), "text")
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "\n")
}
