package chat

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/epp/tokens/jinja"
)

const (
	// maxSteps bounds the work of a template: some 0.1 s. A conversation of 100 turns takes some 20,000 steps.
	maxSteps = 2_000_000
	// MaxText is the longest prompt that is made (bytes).
	MaxText = 1 << 20
)

// Prompt is the text of a prompt.
type Prompt struct {
	Text []byte
	// Special says that the engine puts the tokenizer's special tokens around the text too.
	Special bool
}

// Append makes the prompt of a request to /v1/chat/completions, whose body it is. The text is appended to dst. An error means that the
// prompt is not known: the request may still be one that an engine answers. ctx ends the work early. now is for templates that tell the
// date.
func (t *Template) Append(ctx context.Context, dst, body []byte, now time.Time) (Prompt, error) {
	v, err := jinja.DecodeItems(body, map[string]jinja.Items{"messages": &t.known, "tools": &t.tools})
	if err != nil {
		return Prompt{}, err
	}
	r, ok := v.(*jinja.Dict)
	if !ok {
		return Prompt{}, errors.New("a request must be an object")
	}
	for _, name := range refused {
		if v, ok := r.Get(name); ok && v != nil && v != false {
			return Prompt{}, fmt.Errorf("%s is not supported", name)
		}
	}
	tools, err := toolsOf(r)
	if err != nil {
		return Prompt{}, err
	}
	use := t.usual
	if tools != nil {
		use = t.withTools
	}
	messages, err := use.messages(r)
	if err != nil {
		return Prompt{}, err
	}
	variables, err := t.variables(r)
	if err != nil {
		return Prompt{}, err
	}
	variables["messages"], variables["tools"] = jinja.NewList(messages...), tools
	special, _ := r.Get("add_special_tokens")
	text, err := use.Append(ctx, dst, variables, jinja.Options{Steps: maxSteps, Output: MaxText, Now: now})
	return Prompt{text, special == true}, err
}

// refused are members of requests that make the engine see another prompt than the template's, or that only some engines allow.
var refused = []string{"chat_template", "continue_final_message", "truncate_prompt_tokens", "prompt_embeds"}

// reserved are variables that chat_template_kwargs must not have: the engine gives them, or they are options of transformers.
var reserved = []string{"messages", "conversation", "tools", "chat_template", "continue_final_message", "tokenize", "padding", "truncation",
	"max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"}

// variables returns those of the template, without messages and tools.
func (t *Template) variables(r *jinja.Dict) (map[string]jinja.Value, error) {
	out := map[string]jinja.Value{"documents": nil, "add_generation_prompt": true}
	for name, v := range t.special {
		out[name] = v
	}
	thinking := false
	if v, ok := r.Get("chat_template_kwargs"); ok && v != nil {
		given, ok := v.(*jinja.Dict)
		if !ok {
			return nil, errors.New("chat_template_kwargs must be an object")
		}
		for _, name := range reserved {
			if _, ok := given.Get(name); ok {
				return nil, fmt.Errorf("chat_template_kwargs: %s is not supported", name)
			}
		}
		for _, name := range given.Keys() {
			out[name], _ = given.Get(name)
		}
		_, thinking = given.Get("enable_thinking")
	}
	if v, ok := r.Get("add_generation_prompt"); ok {
		if _, isBool := v.(bool); !isBool {
			return nil, errors.New("add_generation_prompt must be true or false")
		}
		out["add_generation_prompt"] = v
	} else {
		out["add_generation_prompt"] = true
	}
	if v, ok := r.Get("documents"); ok && v != nil {
		out["documents"] = v
	}
	if v, ok := r.Get("reasoning_effort"); ok && v != nil {
		out["reasoning_effort"] = v
		if !thinking {
			out["enable_thinking"] = v != "none"
		}
	}
	return out, nil
}

// toolsOf returns a request's tools as vLLM hands them to the template, nil if it has none.
func toolsOf(r *jinja.Dict) (jinja.Value, error) {
	v, ok := r.Get("tools")
	if !ok || v == nil {
		return nil, nil
	}
	given, ok := v.(*jinja.List)
	if !ok || len(given.Items) == 0 {
		return nil, errors.New("tools must be a list that is not empty")
	}
	var out []jinja.Value
	for _, v := range given.Items {
		m, ok := v.(*message)
		if !ok {
			return nil, errTool
		}
		tool := m.prepared[0].Load()
		if tool == nil {
			var err error
			if tool, err = toolOf(m.read); err != nil {
				return nil, err
			}
			tool.KeepJSON()
			m.remember(0, tool)
		}
		out = append(out, tool)
	}
	return jinja.NewList(out...), nil
}

var errTool = errors.New("a tool must be of type function, with a name, and may have a description, parameters, strict and defer_loading")

func toolOf(given *jinja.Dict) (*jinja.Dict, error) {
	f, ok := get[*jinja.Dict](given, "function")
	name, ok2 := get[string](f, "name")
	kind, isGiven := given.Get("type")
	if !ok || !ok2 || isGiven && kind != "function" {
		return nil, errTool
	}
	function := &jinja.Dict{}
	function.Set("name", name)
	for _, member := range []string{"description", "parameters", "strict", "defer_loading"} {
		v := jinja.Value(nil)
		if f != nil {
			v, _ = f.Get(member)
		}
		if member == "defer_loading" && v == nil {
			v, _ = given.Get(member)
		}
		switch v.(type) {
		case nil:
			if member == "strict" || member == "defer_loading" {
				continue
			}
		case string:
			ok = member == "description"
		case *jinja.Dict:
			ok = member == "parameters"
		case bool:
			ok = member == "strict" || member == "defer_loading"
		default:
			ok = false
		}
		if !ok {
			return nil, errTool
		}
		function.Set(member, v)
	}
	tool := &jinja.Dict{}
	tool.Set("type", "function")
	tool.Set("function", function)
	if later, _ := given.Get("defer_loading"); later != nil {
		tool.Set("defer_loading", later)
	}
	return tool, nil
}

// get returns a member of a type; false if the dictionary is nil, has no such member, or one of another type.
func get[T any](d *jinja.Dict, name string) (T, bool) {
	var none T
	if d == nil {
		return none, false
	}
	v, _ := d.Get(name)
	t, ok := v.(T)
	return t, ok
}
