"""Templates that want memory, time or Python, by name; none of them may have any."""

from __future__ import annotations

ATTACKS = {
    "constant product": "{{ 'x' * 10**9 }}",
    "constant product, set": "{% set x = 'x' * 1000000000 %}",
    "constant power": "{{ 10 ** 1000000000 }}",
    "constant filter": "{{ 'x' | center(1000000000) }}",
    "constant indent": "{{ ('a\n' * 1000000) | indent(100000) }}",
    "constant round": "{{ 1.5 | round(100000000, 'ceil') }}",
    "constant format": "{{ '%1000000000d' % 1 }}",
    "format argument": "{{ '%*d' % (1000000000, 1) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "format method": "{{ '{:1000000000}'.format(1) }}",
    "nested format": "{{ '{:{}}'.format(1, 1000000000) }}",
    "format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "zfill": "{{ '1'.zfill(1000000000) }}",
    "ljust": "{{ '1'.ljust(1000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
    "autoescape argument": "{% autoescape 'x' | indent(99999, true) * 99999 %}{% endautoescape %}",
    "negative": "{{ -('x' * 10**9) }}",
    "list product": "{{ [0] * 10**9 }}",
    "doubling by ~": "{% set n = namespace(x='x') %}{% for i in range(99) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling by +": "{% set n = namespace(x='x') %}{% for i in range(99) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling of a list": "{% set n = namespace(x=[1]) %}{% for i in range(99) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "a list of itself": "{% set n = namespace(x=[1]) %}{% for i in range(99) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "a dictionary of itself": "{% set n = namespace(x={}) %}{% for i in range(99) %}"
    "{% set n.x = {'a': n.x, 'b': n.x} %}{% endfor %}{{ n.x == n.x }}",
    "a tuple by dict()": "{% set n = namespace(x=1) %}{% for i in range(99) %}"
    "{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}{{ n.x | tojson }}",
    "squaring": "{% set n = namespace(x=9) %}{% for i in range(99) %}"
    "{% set n.x = n.x * n.x %}{% endfor %}",
    "replace": "{% set x = 'x' * 1000000 %}{{ x.replace('x', x) }}",
    "replace filter": "{% set x = 'x' * 1000000 %}{{ x | replace('x', x) }}",
    "join": "{% set x = 'x' * 1000000 %}{{ x.join(range(10000) | map('string')) }}",
    "join filter": "{% set x = 'x' * 1000000 %}{{ range(10000) | join(x) }}",
    "strip": "{% set x = 'x' * 1000000 %}{{ x.strip(x) }}",
    "tojson": "{{ (range(100000) | list) | tojson(indent=100000) }}",
    "long digits": "{{ ('9' * 4000000) | int }}",
    "captured output": "{% set x = 'x' * 1000000 %}{% set y %}{% for i in range(100000) %}{{ x }}"
    "{% endfor %}{% endset %}",
    "captured lists": "{% set x = ['x' * 1000000] %}{% set y %}{% for i in range(100000) %}{{ x }}"
    "{% endfor %}{% endset %}",
    "macro output": "{% macro m(x) %}{% for i in range(100000) %}{{ x }}{% endfor %}{% endmacro %}"
    "{{ m('x' * 1000000) }}",
    "filter block": "{% filter upper %}{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}"
    "{% endfilter %}",
    "output": "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
    "silent loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}"
    "{% endfor %}",
    "filtered loops": "{% for i in range(100000) %}{% for j in range(100000) if false %}"
    "{% endfor %}{% endfor %}",
    "string loops": "{% set x = 'x' * 4000000 %}{% for i in x %}{% for j in x %}{% endfor %}"
    "{% endfor %}",
    "long tests": "{% set x = 'x' * 4000000 %}{{ range(100000) | map('string') | select('in', x)"
    " | list }}",
    "long attributes": "{% set x = '0.' * 1000000 ~ '0' %}{{ range(100000) | map('string')"
    " | map(attribute=x) | list }}",
    "recursive macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "branching macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
    "{% endmacro %}{{ m(60) }}",
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "recursive block": "{% block b %}{{ self.b() }}{% endblock %}",
    "deep list": "{% set n = namespace(x=[1]) %}{% for i in range(100000) %}{% set n.x = [n.x] %}"
    "{% endfor %}{{ n.x }}",
    "namespaces": "{% set n = namespace(x=[1]) %}{% for i in range(99999) %}"
    "{% set m = namespace(x=[n, n, n.x]) %}{% set n.x = m.x %}{% endfor %}{{ n.x }}",
    "lipsum": "{{ lipsum(n=1000000000) }}",
    "cycler": "{{ cycler(1) }}",
    "loop as a list": "{% set x = 'x' * 1000000 %}{% for i in range(100000) %}{{ loop | join(x) }}"
    "{% endfor %}",
    "loop in a list": "{% for i in range(100000) %}{% set x = [loop] %}{{ x }}{% endfor %}",
    "globals": "{{ raise_exception.__globals__.x }}",
    "classes": "{{ ''.__class__.__mro__ }}",
    "classes by format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "classes by attr": "{{ '' | attr('__class__') }}",
    "classes by map": "{{ [''] | map(attribute='__class__.__mro__') | list }}",
    "mutation": "{{ messages.append({}) }}",
    "appending": "{% set x = [] %}{% for i in range(99999) %}{% for j in range(99999) %}"
    "{{ x.append('x' * 1000) }}{% endfor %}{% endfor %}",
    "endless list": "{% set x = [1] %}{% for i in x %}{{ x.append(i) }}{% endfor %}",
    "list of itself": "{% set x = [] %}{{ x.append(x) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "extends": "{% extends '/etc/passwd' %}",
    "date width": "{{ strftime_now('%1000000000d' * 100) }}",
    "syntax": "{% if %}",
    "unclosed": "{% for m in messages %}",
    "nested parentheses": "{{ " + "(" * 50_000 + ")" * 50_000 + " }}",
    "nested loops": "{% for i in [1] %}" * 200 + "{% endfor %}" * 200,
    "nested nots": "{{ " + "not " * 50_000 + "1 }}",
    "nested ifs": "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
    "branches": "".join(f"{{% if a %}}{{% set a{i} = 1 %}}{{% endif %}}" for i in range(3000)),
    "long": "x" * (1 << 20),
    "unknown filter": "{{ 1 | urlize }}",
    "refusal": "{{ raise_exception('no') }}",
    "undefined": "{{ messages[7].content.x }}",
    "type": "{{ 1 + 'a' }}",
    "zero": "{{ 1 // 0 }}",
    # ---- widths and precisions that are small alone
    "many widths": "{% set f = '{0:999}' * 400000 %}{{ f.format(1) }}",
    "many widths by %": "{% set f = '%(a)999d' * 400000 %}{{ f % {'a': 1} }}",
    "many precisions": "{% set f = '%(a).999f' * 400000 %}{{ f | format(a=1) }}",
    # ---- texts taken apart, each character of which becomes an object
    "list of a text": "{{ ('\u4e00' * 4000000) | list | length }}",
    "sorted text": "{{ ('\u4e00' * 4000000) | sort | length }}",
    "joined text": "{{ ('\u4e00' * 4000000) | join('') | length }}",
    "joined text, method": "{{ ''.join('\u4e00' * 4000000) | length }}",
    "mapped text": "{{ ('\u4e00' * 4000000) | map('upper') | list | length }}",
    "unpacked text": "{{ dict(*('\u4e00' * 4000000)) }}",
    "unpacked text, macro": "{% macro m() %}{% endmacro %}{{ m(*('\u4e00' * 4000000)) }}",
    "unpacked list": "{% macro m() %}{{ m(*varargs) }}{% endmacro %}{{ m(*([1] * 400000)) }}",
    "unpacked in a filter": "{{ 'a' | replace(*([1] * 400000)) }}",
    "pieces of a text": "{% set x = '\u4e00 ' * 2000000 %}{{ x.split() | length }}"
    "{{ x.split() | length }}{{ x.split() | length }}",
    "lines of a text": "{% set x = '\u4e00\n' * 2000000 %}{{ x.splitlines() | length }}"
    "{{ x.splitlines() | length }}{{ x.splitlines() | length }}",
    "words of a text": "{{ ('a b\n' * 1000000) | title | length }}",
    "indented lines": "{{ ('\u4e00\x0b' * 2000000) | indent | length }}",
    # ---- many values that are each within the limits
    "many slices": "{% set x = 'x' * 4000000 %}"
    + "".join(f"{{% set a{i} = x[{i}:] %}}" for i in range(2000)),
    "many wide texts": "{% set x = '\U0001f600' * 4000000 %}"
    + "".join(f"{{% set a{i} = x.lower() %}}" for i in range(1000)),
    "many lists": "{% set n = namespace(x=[]) %}{% for i in range(100000) %}"
    "{% set m = namespace(x=range(1000), y=n.x) %}{% set n.x = [m] %}{% endfor %}",
    "many dictionaries": "{% set n = namespace(x=[]) %}{% for i in range(100000) %}"
    "{% set m = namespace(x=dict(a=i, b=i, c=i, d=i), y=n.x) %}{% set n.x = [m] %}{% endfor %}",
    "many macros": "{% set n = namespace(x=[]) %}{% for i in range(100000) %}"
    "{% for j in range(9) %}{% macro m() %}{{ i }}{% endmacro %}"
    "{% set n.x = [n.x, m] if j else [m] %}{% endfor %}"
    "{% set o = namespace(x=n.x, y=n.y) %}{% set n.y = o %}{% endfor %}",
    "list by a generator": "{% set n = namespace(x=range(100000)) %}{% for i in range(99) %}"
    "{% set n.x = n.x | map('string') | list + n.x %}{% endfor %}",
    "unprintable": "{% set x = ['\U000e0001' * 4000000] %}"
    "{% for i in range(50) %}{{ x }}{% endfor %}",
    "escapes of JSON": "{% set x = '\U0001f600' * 4000000 %}{{ x | tojson(ensure_ascii=true) }}",
    "separators of JSON": "{{ range(100000) | list | tojson(separators=('x' * 100000, 'x')) }}",
    "indented JSON": "{{ ([[[[]]]] * 100000) | tojson(indent=99) }}",
    "escaped": "{{ ('\"' * 4000000) | escape | escape }}",
    "upper of a ligature": "{% for i in range(99) %}{% set x = ('\ufb03' * 4000000) | upper %}"
    "{% endfor %}",
    "growing by case": "{% set n = namespace(x='\u0390' * 4000000) %}{% for i in range(99) %}"
    "{% set n.x = n.x | upper | lower %}{% endfor %}",
    # ---- parts without text
    "empty parts": "{% for i in range(100000) %}" + "{{ '' }}" * 12000 + "{% endfor %}",
    "empty parts, captured": "{% set x %}{% for i in range(100000) %}"
    + "{{ '' }}" * 12000
    + "{% endfor %}{% endset %}",
    "short parts, captured": "{% set x %}{% for i in range(100000) %}"
    + "a{% if i %}b{% endif %}" * 4000
    + "{% endfor %}{% endset %}",
    "short parts between": "{% macro m() %}{% for i in range(100000) %}"
    + "a{% set y = 1 %}" * 6000
    + "{% endfor %}{% endmacro %}{{ m() }}",
    # ---- time without a step
    "search from the right": "{% set x = 'a' * 2000000 %}{{ x.rfind('ab' ~ 'a' * 1000000) }}",
    "split from the right": "{% set x = 'a' * 2000000 %}{{ x.rsplit('ab' ~ 'a' * 1000000) }}",
    "partition from the right": "{% set x = 'a' * 2000000 %}"
    "{{ x.rpartition('ab' ~ 'a' * 1000000) }}",
    "comparisons": "{% set a = [0] * 400000 %}{% set b = [0] * 399999 + [1] %}"
    "{% for i in range(100000) %}{{ a == b" + " or a == b" * 300 + " }}{% endfor %}",
    "memberships": "{% set a = 'a' * 2000000 %}{% set b = 'a' * 1000000 ~ 'b' %}"
    "{% for i in range(100000) %}{{ b in a" + " or b in a" * 300 + " }}{% endfor %}",
    "sorting": "{% set x = range(100000) | map('string') | list %}{% for i in range(100000) %}"
    "{% set y = x | sort(reverse=true) %}{% endfor %}",
    "unique": "{% for i in range(100000) %}{% set y = range(100000) | unique | list %}{% endfor %}",
    "digits of a float": "{{ ('9' * 4000000) | float }}",
    "tower of powers": "{{ 9 ** (9 ** 9) }}",
    "ladder of powers": "{% set n = namespace(x=3) %}{% for i in range(100000) %}"
    "{% set n.x = n.x ** 3 %}{% endfor %}",
    "recursion by call": "{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}",
    "recursion by caller": "{% macro m() %}{{ caller() }}{% endmacro %}"
    "{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% endmacro %}{{ n() }}",
    "recursion by self": "{% block a %}{{ self.b() }}{% endblock %}{% block b %}{{ self.a() }}"
    "{% endblock %}",
    "recursion in a filter": "{% macro m(x) %}{{ [1] | map('string') | join(m(x)) }}{% endmacro %}"
    "{{ m(1) }}",
    # ---- compile time
    "outputs": "{{a}}" * 26000,
    "sets": "{%set a=1%}" * 11000,
    "names": "".join(f"{{%set a{i}=1%}}" for i in range(8000)),
    "scopes": "".join(f"{{%for a{i} in a%}}{{%endfor%}}" for i in range(3500)),
    "blocks": "".join(f"{{%block a{i}%}}{{%endblock%}}" for i in range(4000)),
    "macros": "".join(f"{{%macro a{i}()%}}{{%endmacro%}}" for i in range(3500)),
    "conditions": "{{ " + "1 if a else " * 9000 + "1 }}",
    "operators": "{{ 1" + "+1" * 60000 + " }}",
    "powers": "{{ 1" + "**1" * 40000 + " }}",
    "concatenations": "{{ 1" + "~1" * 60000 + " }}",
    "comparisons in a row": "{{ 1" + "<1" * 60000 + " }}",
    "filters in a row": "{{ 1" + "|abs" * 30000 + " }}",
    "attributes in a row": "{{ a" + ".a" * 60000 + " }}",
    "calls in a row": "{{ a" + "()" * 60000 + " }}",
    "lists": "{{ " + "[" * 60000 + "]" * 60000 + " }}",
    "a long list": "{{ [" + "a," * 60000 + "] }}",
    "a long dictionary": "{{ {" + "1:a," * 30000 + "} }}",
    "arguments": "{{ a(" + "1," * 60000 + ") }}",
    "long digits in the source": "{{ " + "9" * 120000 + " }}",
    "comment without an end": "{#" * 60000,
    "raw without an end": "{% raw %}" * 14000,
    "spaces": "{%" + " " * 120000,
    "minus signs": "{%-" * 40000,
    "unfinished text": "{{ '" + "\\" * 120000,
    "braces": "{" * 130000,
    # ---- ways to Python
    "subclasses": "{{ ().__class__.__base__.__subclasses__() }}",
    "init globals": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "namespace class": "{{ namespace.__init__.__globals__ }}",
    "self internals": "{{ self.__init__.__globals__ }}",
    "self context": "{{ self._TemplateReference__context.environment.call }}",
    "macro function": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "generator frame": "{{ (messages | map('string')).gi_frame.f_globals }}",
    "format by attribute": "{{ ['{0.__class__}'] | map('format', 1) | list }}",
    "unicode name": "{{ ''.\uff3f\uff3fclass\uff3f\uff3f.mro }}",
    "item class": "{{ ''['__class__']['__mro__'] }}",
    "joined name": "{{ ''['__cla' ~ 'ss__'].x }}",
    "attr filter": "{{ '' | attr('__class__') }}",
    "dictionary update": "{{ messages[0].update({'a': 1}) }}",
    "namespace of a class": "{% set n = namespace() %}{% set n.__class__ = 1 %}{{ n.x.y }}",
    "set of a loop": "{% for i in [1] %}{% set loop.x = 1 %}{% endfor %}",
    "assignment to a message": "{% set messages.x = 1 %}",
    "debug": "{% debug %}",
    "do": "{% do messages.append(1) %}",
    "from import": "{% from 'os' import system %}",
    "pickle": "{{ messages.__reduce_ex__(2) }}",
    "environment": "{{ environment.from_string('x') }}",
    "request": "{{ request.application.__globals__ }}",
    "config": "{{ config.from_pyfile('/etc/passwd') }}",
    "import builtins": "{{ __builtins__.open('/etc/passwd').read() }}",
    "import by name": "{{ __import__('os').system('id') }}",
    "eval": "{{ eval('1') }}",
    "date of a huge width": "{{ strftime_now('%0999999999Y') }}",
    "a refusal of any size": "{{ raise_exception(['x' * 1000] * 4000) }}",
    "code injection by a name": "{% block a\u0661 %}{% endblock %}{{ a\u2028b }}",
}

#: Rendered as transformers' sandbox does: what is not there prints as nothing, and runs nothing.
HARMLESS = {
    "loop internals": "{% for i in [1] %}{{ loop.__class__ }}{% endfor %}",
    "loop iterable": "{% for i in [1] %}{{ loop._iterable }}{% endfor %}",
    "macro environment": "{% macro m() %}{% endmacro %}{{ m._environment }}",
    "code": "{{ raise_exception.__code__ }}",
    "strftime globals": "{{ strftime_now.__globals__ }}",
    "method self": "{{ ''.join.__self__.__class__ }}",
    "format attribute": "{{ '{0.__class__}'.format(messages) }}",
    "format item": "{{ '{a.__class__.__init__}'.format(a=namespace) }}",
    "format nested item": "{{ '{0[0].__class__}'.format(messages) }}",
    "format by item": "{{ ''['format'].__func__ }}{{ '{0.__class__}'['format'](1) }}",
    "format in a macro": "{% macro m(f) %}{{ f('') }}{% endmacro %}{{ m('{0.__class__}'.format) }}",
    "selectattr class": "{{ messages | selectattr('__class__') | list }}",
    "sort by class": "{{ [messages, messages] | sort(attribute='__class__') }}",
}
