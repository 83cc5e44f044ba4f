// Package parser holds the plugins that say which APIs the picker reads: model, prompt, whether a request can be split.
//
// They take no parameters; a list of APIs leaves. None of them reads a request (epp/read does).
package parser
