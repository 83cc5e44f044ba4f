// Package page reads the load of an engine from its metrics page.
//
// An Extractor, which an operator may configure, says which series of which engine mean what; Compile makes Programs of it. A
// page in Prometheus' text format enters a Reader; an epp.Load leaves. The page is read as bytes, line by line, without
// allocations while nothing new is on it. Only lines of the configured families are parsed: see Extractor and
// epp.Declaration. Values are never corrected:
//
//   - A page that cannot be read whole gives an error, and no load.
//   - A value that is missing or impossible on the page is unknown.
//   - One page may show several engines, such as the data-parallel ranks of one vLLM. Their requests and blocks are summed.
//     Their KV usage is averaged, since the ranks of one engine have caches of about the same size. If one of the series is
//     impossible, the result is unknown.
//   - If series have explicit timestamps, only those with the newest count. A series without a timestamp is current.
//   - The values of a LoRA family are times: the series with the latest counts.
//
// ReadLoads and ReadNoPrefixes read what SGLang's engines tell on pages of their own.
//
// The package gets no pages (epp/pool does), and does not know when they were read.
package page
