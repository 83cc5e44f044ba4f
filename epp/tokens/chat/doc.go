// Package chat makes the text of a chat request's prompt, as the engine makes it from the model's chat template.
//
// The files of a model enter Read, which returns a Template. Template.Append takes the body of a request to /v1/chat/completions and
// appends the prompt. What is done to messages and tools before the template sees them is what vLLM 0.32 does: parts of texts are joined
// or kept as the template expects, arguments of tool calls become objects, tools have the members and the order of vLLM's own types.
//
// A template remembers messages that it has seen, so that they need not be read again. It goes through all messages of a prompt each time.
//
// Images, templates in requests, messages that are continued and the like are errors, as is whatever a template refuses: the caller lets
// the engine answer, and knows nothing of the prompt. The package makes no token ids (epp/tokens does), and asks no engine.
package chat
